# SPDX-License-Identifier: Apache-2.0
"""verify_attn over e4m3 pools against fp64: shapes, both types of q, scales, the cast of q, masks, poison, bad arguments."""

import pytest
import torch
from kdtree_kernel.selftest import Case, kv_cases, make_inputs

from scenes import SCALE, assert_right, assert_wrong, run

E4M3 = {"kv": "fp8_e4m3", "k_scale": 0.5, "v_scale": 0.25}
NAN = float("nan")


def test_the_selftests_cases(device: str) -> None:
    for i, case in enumerate(kv_cases("fp8_e4m3", device)):
        inputs = make_inputs(case, device, i)
        assert_right(case, inputs, run(case, inputs))


@pytest.mark.parametrize("heads", [1, 3, 8, 16, 64])
@pytest.mark.parametrize("n", [1, 2, 9, 33])
def test_heads_and_draft_sizes(device: str, heads: int, n: int) -> None:
    if device == "cpu" and heads * n > 300:
        pytest.skip("slow on a CPU, and no other code there")
    case = Case("heads", torch.float16, [77, 0, 32], n, heads=heads, **E4M3)
    inputs = make_inputs(case, device, heads)
    assert_right(case, inputs, run(case, inputs))


@pytest.mark.parametrize("left_out", ["k_scale", "v_scale"])
def test_scales_are_not_left_out(device: str, left_out: str) -> None:
    case = Case("plain", torch.float16, [60], 9, mask="none", **E4M3)
    inputs = make_inputs(case, device, 1)
    out = run(case, inputs)
    assert_wrong(Case("without", torch.float16, [60], 9, mask="none", **(E4M3 | {left_out: 1.0})), inputs, out)


def test_q_is_cast_for_the_prefix_and_saturates(device: str) -> None:
    case = Case("cast", torch.float16, [60], 9, mask="none", kv="fp8_e4m3")
    inputs = make_inputs(case, device, 1)
    inputs["q"] *= 200
    assert float(inputs["q"].abs().max()) > 448
    out = run(case, inputs)
    assert_right(case, inputs, out)
    assert_wrong(Case("as it is", torch.float16, [60], 9, mask="none"), inputs | {"kv_pool": inputs["kv_pool"].half()}, out)


def test_the_mask_exactly(device: str) -> None:
    """All scores equal: the output is the mean of what is visible, so one-hot values spell the mask out."""
    n = 33
    case = Case("one-hot", torch.float16, [40], n, heads=1, kv="fp8_e4m3")
    inputs = make_inputs(case, device, 10)
    inputs["q"].zero_()
    inputs["kv_pool"] = torch.zeros_like(inputs["kv_pool"].float()).to(torch.float8_e4m3fn)
    inputs["k_draft"].zero_()
    inputs["k_draft"][torch.arange(n), 0, torch.arange(n)] = 1
    assert torch.equal(run(case, inputs)[:, 0, :n].cpu() > 1e-4, inputs["visible"][0])


def test_poison_stays_in_its_request(device: str) -> None:
    case = Case("padded", torch.bfloat16, [300, 1, 45], 9, **E4M3)
    inputs = make_inputs(case, device, 13)
    clean = run(case, inputs)
    inputs["q"][9:18] = NAN
    inputs["k_draft"][9:18] = NAN
    inputs["kv_indices"][300] = 0
    inputs["kv_pool"].view(torch.uint8)[0] = 0x7F  # NaN
    out = run(case, inputs)
    assert torch.equal(out[:9], clean[:9]) and torch.equal(out[18:], clean[18:])
    assert not bool(out[9:18].isfinite().any())


def test_repeats_are_bitwise_equal(device: str) -> None:
    case = Case("repeat", torch.bfloat16, [200, 31], 9, **E4M3)
    inputs = make_inputs(case, device, 3)
    assert torch.equal(run(case, inputs), run(case, inputs))


@pytest.mark.parametrize("wrong, said", [
    ({"k_draft": None}, "k_draft must be given with a float8 kv_pool"),
    ({"k_scale": 0.0}, "k_scale must be above 0 and finite, got 0"),
    ({"v_scale": float("inf")}, "v_scale must be above 0 and finite, got inf"),
    ({"kv_pool": torch.float8_e5m2}, "kv_pool must be of type"),
])
def test_bad_arguments_are_named(library: str, wrong: dict, said: str) -> None:
    case = Case("bad", torch.bfloat16, [20], 3, **E4M3)
    inputs = make_inputs(case, "cpu", 1)
    for name, value in wrong.items():
        if name in inputs:
            inputs[name] = inputs["kv_pool"].float().to(value) if name == "kv_pool" else value
        else:
            setattr(case, name, value)
    with pytest.raises(RuntimeError, match=f"kdtree.verify_attn: {said}"):
        run(case, inputs)


def test_same_under_graph_replay_with_other_lengths(gpu: str) -> None:
    """One graph, captured at the longest lengths, then replayed with shorter ones."""
    case = Case("graph", torch.bfloat16, [500, 64], 9, mask="none", **E4M3)
    inputs = make_inputs(case, gpu, 5)
    q = inputs["q"]
    out = torch.empty(18, 8, 512, dtype=q.dtype, device=gpu)
    workspace = torch.empty(torch.ops.kdtree.verify_attn_workspace_bytes(2, 9, 8, q), dtype=torch.uint8, device=gpu)

    def call() -> None:
        torch.ops.kdtree.verify_attn(q, inputs["k_draft"], out, inputs["kv_pool"], inputs["qo_indptr"], inputs["kv_indptr"],
                                     inputs["kv_indices"], None, None, None, workspace, 9, SCALE, k_scale=0.5, v_scale=0.25)

    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    for prefixes in ([500, 64], [31, 400], [0, 33]):
        inputs["kv_indptr"].copy_(torch.tensor([0, prefixes[0], sum(prefixes)], dtype=torch.int32))
        graph.replay()
        torch.cuda.synchronize()
        now = Case("graph", torch.bfloat16, prefixes, 9, mask="none", **E4M3)
        assert_right(now, inputs, out)
