# SPDX-License-Identifier: Apache-2.0
"""verify_attn against fp64: lengths, batches, draft sizes, types, masks, both sources of draft KV, padded requests."""

import itertools

import pytest
import torch
from kdtree_kernel.selftest import Case, make_inputs

from scenes import SCALE, assert_right, run, want

LENGTHS = [0, 1, 15, 16, 17, 1000, 4097, 65536]
DRAFTS = [1, 2, 9, 16, 33, 60, 65]
MASKS = ["bool", "uint8", "none"]
HALVES = [torch.bfloat16, torch.float16]
NAN = float("nan")


def grid_cases(device: str) -> list[Case]:
    """Every length with every draft size; types and mask kinds take turns. The CPU leaves the slowest out."""
    cases = []
    for i, (length, n) in enumerate(itertools.product(LENGTHS, DRAFTS)):
        if device == "cpu" and (length > 4097 and n != 9 or length == 4097 and n not in (1, 9) or length == 1000 and n > 33):
            continue
        cases.append(Case(f"{length} x {n}", HALVES[i % 2], [length], n, mask=MASKS[i % 3],
                          qo_dtype=[torch.int64, torch.int32][i // 2 % 2], index_dtype=[torch.int64, torch.int32][i % 2],
                          draft_from=["array", "pool"][i // 3 % 2]))
    return cases


def test_lengths_and_draft_sizes(device: str) -> None:
    for i, case in enumerate(grid_cases(device)):
        inputs = make_inputs(case, device, 100 + i)
        assert_right(case, inputs, run(case, inputs))


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32], ids=str)
@pytest.mark.parametrize("n", [1, 9, 33])
@pytest.mark.parametrize("prefixes", [[17], [0, 1000, 1], [0, 1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 500, 7, 0, 1]],
                         ids=["1", "3", "16"])
def test_batches(device: str, prefixes: list[int], n: int, dtype: torch.dtype) -> None:
    if device == "cuda" and dtype == torch.float32:
        pytest.skip("fp32 is for the CPU")
    case = Case("batch", dtype, prefixes, n, heads=8 if device == "cuda" else 2)
    inputs = make_inputs(case, device, n)
    assert_right(case, inputs, run(case, inputs))


@pytest.mark.parametrize("heads", [1, 3, 4, 8, 16, 32, 64, 128])
def test_heads(device: str, heads: int) -> None:
    case = Case("heads", torch.bfloat16, [77, 5], 5, heads=heads)
    inputs = make_inputs(case, device, heads)
    assert_right(case, inputs, run(case, inputs))


@pytest.mark.parametrize("n", [126, 127, 128])
def test_most_draft_tokens(device: str, n: int) -> None:
    case = Case("most", torch.bfloat16, [40], n, heads=2)
    inputs = make_inputs(case, device, n)
    assert_right(case, inputs, run(case, inputs))


@pytest.mark.parametrize("page", [16, 64])
def test_pages_by_their_slots(device: str, page: int) -> None:
    """Larger pages are runs of slots: the kernel sees slot indices and nothing else."""
    case = Case("pages", torch.bfloat16, [200, 70], 9)
    inputs = make_inputs(case, device, page)
    rows = inputs["kv_pool"][inputs["kv_indices"].long()]
    pages = torch.randperm(40, generator=torch.Generator().manual_seed(page)).to(device)
    pool = torch.full((40 * page, 1, 576), NAN, dtype=torch.bfloat16, device=device)
    slots, first = [], 0
    for prefix in case.prefixes:
        own = pages[first : first + -(-prefix // page)]
        first += len(own)
        slots.append((own[:, None] * page + torch.arange(page, device=device)).flatten()[:prefix])
    inputs["kv_indices"] = torch.cat(slots).to(case.index_dtype)
    pool[inputs["kv_indices"]] = rows
    inputs["kv_pool"] = pool
    assert_right(case, inputs, run(case, inputs))


@pytest.mark.parametrize("prefixes", [[20_000] + [100] * 15, [100] * 15 + [20_000], [33] * 64],
                         ids=["long first", "long last", "64"])
def test_mixed_and_large_batches(gpu: str, prefixes: list[int]) -> None:
    case = Case("mixed", torch.bfloat16, prefixes, 9)
    inputs = make_inputs(case, gpu, 20)
    out = run(case, inputs)
    assert_right(case, inputs, out)
    assert torch.equal(out, run(case, inputs))


def test_longest_context(gpu: str) -> None:
    case = Case("longest", torch.bfloat16, [262_144], 9, heads=4)
    inputs = make_inputs(case, gpu, 21)
    assert_right(case, inputs, run(case, inputs))


def test_large_scores(device: str) -> None:
    """Scores of +-1000: the maximum has to be raised again and again, and nothing may overflow."""
    case = Case("large", torch.float16, [3000], 9)
    inputs = make_inputs(case, device, 5)
    inputs["q"] *= 40
    # Ramp the keys so that later tiles always win: worst case for a lazily raised maximum.
    inputs["kv_pool"][inputs["kv_indices"].long()] *= torch.linspace(0.1, 1, 3000, device=device)[:, None, None].half()
    assert_right(case, inputs, run(case, inputs))


@pytest.mark.parametrize("nsplit", [1, 2, 7, 500])
def test_any_split_gives_the_same(gpu: str, nsplit: int) -> None:
    case = Case("splits", torch.bfloat16, [1000, 33, 0], 9)
    inputs = make_inputs(case, gpu, 3)
    size = torch.ops.kdtree.verify_attn_workspace_bytes(3, 9, 8, inputs["q"], nsplit)
    out = torch.full((27, 8, 512), NAN, dtype=torch.bfloat16, device=gpu)
    torch.ops.kdtree.verify_attn(inputs["q"], inputs["k_draft"], out, inputs["kv_pool"], inputs["qo_indptr"],
                                 inputs["kv_indptr"], inputs["kv_indices"], inputs["custom_mask"], inputs["mask_indptr"],
                                 None, torch.empty(size, dtype=torch.uint8, device=gpu), 9, SCALE, nsplit=nsplit)
    assert_right(case, inputs, out)


def test_repeats_bit_for_bit(device: str) -> None:
    case = Case("repeat", torch.bfloat16, [1000, 333], 9)
    inputs = make_inputs(case, device, 4)
    assert torch.equal(run(case, inputs), run(case, inputs))


def test_draft_from_pool_equals_draft_from_array(device: str) -> None:
    case = Case("pool", torch.bfloat16, [100, 31], 9, draft_from="pool")
    inputs = make_inputs(case, device, 6)
    from_pool = run(case, inputs)
    inputs["k_draft"] = inputs["draft_rows"].to(device)
    assert torch.equal(from_pool, run(case, inputs))


def test_prefix_columns_of_the_mask_do_not_matter(device: str) -> None:
    case = Case("prefix columns", torch.bfloat16, [100, 31], 9)
    inputs = make_inputs(case, device, 7)
    before = run(case, inputs)
    mask = inputs["custom_mask"]
    for b, prefix in enumerate(case.prefixes):
        start = int(inputs["mask_indptr"][b])
        rows = mask[start : start + 9 * (prefix + 9)].view(9, prefix + 9)
        rows[:, :prefix] = ~rows[:, :prefix]
    assert torch.equal(before, run(case, inputs))


@pytest.mark.parametrize("visible", [1, 2, 128, 255])
def test_any_nonzero_mask_byte_is_visible(device: str, visible: int) -> None:
    case = Case("bytes", torch.bfloat16, [50], 9)
    inputs = make_inputs(case, device, 8)
    inputs["custom_mask"] = inputs["custom_mask"].to(torch.uint8) * visible
    assert_right(case, inputs, run(case, inputs))


def test_none_means_causal(device: str) -> None:
    case = Case("none", torch.bfloat16, [50, 3], 17, mask="none")
    inputs = make_inputs(case, device, 9)
    without = run(case, inputs)
    rows = [torch.cat([torch.zeros(17, p, dtype=torch.bool), torch.ones(17, 17, dtype=torch.bool).tril()], 1).flatten()
            for p in case.prefixes]
    inputs["custom_mask"] = torch.cat(rows).to(device)
    inputs["mask_indptr"] = torch.tensor([0, 17 * 67, 17 * 87], device=device)
    assert torch.equal(without, run(case, inputs))


def test_zero_queries_show_the_mask(device: str) -> None:
    """All scores equal: the output is the plain mean of what is visible, so one-hot values spell the mask out."""
    n, prefix = 33, 40
    case = Case("one-hot", torch.float16, [prefix], n, heads=1)
    inputs = make_inputs(case, device, 10)
    inputs["q"].zero_()
    inputs["kv_pool"].zero_()
    inputs["k_draft"].zero_()
    inputs["k_draft"][torch.arange(n), 0, torch.arange(n)] = 1
    shown = run(case, inputs)[:, 0, :n].cpu() > 1e-4
    assert torch.equal(shown, inputs["visible"][0])


def test_row_that_sees_no_draft_token_attends_the_prefix(device: str) -> None:
    case = Case("masked", torch.bfloat16, [70], 9)
    inputs = make_inputs(case, device, 11)
    inputs["custom_mask"].view(9, 79)[4] = False
    inputs["visible"][0][4] = False
    assert_right(case, inputs, run(case, inputs))


def test_row_that_sees_nothing_is_nan_and_alone_in_it(device: str) -> None:
    case = Case("nothing", torch.bfloat16, [0, 20], 9)
    inputs = make_inputs(case, device, 12)
    inputs["custom_mask"][: 9 * 9].view(9, 9)[8] = False
    out, reference = run(case, inputs), want(case, inputs)
    assert bool(out[8].isnan().all())
    rest = [i for i in range(18) if i != 8]
    assert bool(out[rest].isfinite().all())
    assert float((out[rest].cpu().double() - reference[rest]).abs().max()) < 0.05


@pytest.mark.parametrize("poison", [NAN, float("inf")])
def test_garbage_in_padded_requests_stays_there(device: str, poison: float) -> None:
    """A padded graph slot: one prefix key in slot 0, garbage everywhere, whatever mask bytes."""
    case = Case("padded", torch.bfloat16, [300, 1, 45, 1], 9)
    inputs = make_inputs(case, device, 13)
    real = torch.tensor([i for i in range(36) if i // 9 in (0, 2)], device=device)
    clean = run(case, inputs)[real]
    for b in (1, 3):
        inputs["q"][b * 9 : b * 9 + 9] = poison
        inputs["k_draft"][b * 9 : b * 9 + 9] = poison
        inputs["kv_indices"][int(inputs["kv_indptr"][b])] = 0
        start = int(inputs["mask_indptr"][b])
        inputs["custom_mask"][start : start + 90] = torch.rand(90, device=device) < 0.5
    inputs["kv_pool"][0] = poison
    out = run(case, inputs)
    assert torch.equal(out[real], clean)
    assert not bool(out[9:18].isfinite().any())


def test_slots_outside_the_pool_are_not_followed(device: str) -> None:
    case = Case("outside", torch.bfloat16, [40, 8], 3)
    inputs = make_inputs(case, device, 14)
    clean = run(case, inputs)
    inputs["kv_indices"][3], inputs["kv_indices"][5] = 2**31 - 1, -1
    out = run(case, inputs)
    assert bool(out.isfinite().all())
    assert torch.equal(out[3:], clean[3:])


def test_tail_of_kv_indices_is_never_read(device: str) -> None:
    case = Case("tail", torch.bfloat16, [40, 8], 3)
    inputs = make_inputs(case, device, 15)
    clean = run(case, inputs)
    nowhere = torch.full((1, 1, 576), NAN, dtype=torch.bfloat16, device=device)
    inputs["kv_pool"] = torch.cat([inputs["kv_pool"], nowhere])  # the last slot: where an index outside leads
    inputs["kv_indices"] = torch.cat([inputs["kv_indices"], torch.full((500,), 2**31 - 1, device=device)])
    assert torch.equal(run(case, inputs), clean)


def test_ragged_and_empty_requests(device: str) -> None:
    """Requests with fewer draft tokens than the most, or none: theirs are right, no other row is written."""
    case = Case("ragged", torch.bfloat16, [30, 50, 20], 9, mask="none")
    inputs = make_inputs(case, device, 16)
    inputs["qo_indptr"] = torch.tensor([0, 4, 4, 13], device=device)
    out = run(case, inputs)
    assert bool(out[13:].isnan().all())
    small = Case("4", torch.bfloat16, [30], 4, mask="none")
    one = dict(inputs, q=inputs["q"][:4], draft_rows=inputs["draft_rows"][:4],
               visible=[torch.ones(4, 4, dtype=torch.bool).tril()])
    assert_right(small, one, out[:4])


@pytest.mark.parametrize("enable, written", [(0, ""), (1, "out"), (2, "scratch")])
def test_enable(device: str, enable: int, written: str) -> None:
    case = Case("enable", torch.bfloat16, [100], 9)
    inputs = make_inputs(case, device, 17)
    scratch = torch.full((9, 8, 512), NAN, dtype=torch.bfloat16, device=device)
    flag = torch.tensor([enable], dtype=torch.int32, device=device)
    out = run(case, inputs, enable=flag, out_scratch=scratch)
    for name, tensor in (("out", out), ("scratch", scratch)):
        if name == written:
            assert_right(case, inputs, tensor)
        else:
            assert bool(tensor.isnan().all()), f"{name} was written"


def test_layouts_that_sglang_passes(device: str) -> None:
    """q and out as [tokens, heads * dim] views, a 2-D pool, indptr longer than the batch."""
    case = Case("layouts", torch.bfloat16, [64, 9], 9)
    inputs = make_inputs(case, device, 18)
    clean = run(case, inputs)
    out = torch.full((18, 8 * 512), NAN, dtype=torch.bfloat16, device=device)
    wide = torch.zeros(18, 8, 640, dtype=torch.bfloat16, device=device)
    wide[:, :, :576] = inputs["q"]
    size = torch.ops.kdtree.verify_attn_workspace_bytes(2, 9, 8, out)
    torch.ops.kdtree.verify_attn(
        wide[:, :, :576], inputs["k_draft"][:, 0], out, inputs["kv_pool"][:, 0], inputs["qo_indptr"],
        torch.cat([inputs["kv_indptr"], inputs["kv_indptr"][-1:].expand(5)]), inputs["kv_indices"],
        inputs["custom_mask"], inputs["mask_indptr"], None, torch.empty(size, dtype=torch.uint8, device=device), 9, SCALE)
    assert torch.equal(out.view(18, 8, 512), clean)


def test_addresses_beyond_two_to_the_31_elements(gpu: str) -> None:
    slots = 4_000_000  # 576 * 3.73 M is 2^31
    case = Case("far", torch.bfloat16, [500], 9)
    inputs = make_inputs(case, gpu, 19)
    pool = torch.zeros(slots, 1, 576, dtype=torch.bfloat16, device=gpu)
    far = inputs["kv_indices"] + (slots - 1000)
    pool[far] = inputs["kv_pool"][inputs["kv_indices"]]
    near = run(case, inputs)
    inputs["kv_pool"], inputs["kv_indices"] = pool, far
    assert torch.equal(run(case, inputs), near)
