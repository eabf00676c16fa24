# SPDX-License-Identifier: Apache-2.0
"""Three faults that once cost days, each planted here and caught: the tests that would have found them do.

(a) a host sync or an allocation inside graph capture; (b) attention over the prefix only; (c) mask_indptr sliced or
strided wrongly. Without a GPU nothing can be captured: (a) then is only a search of the sources.
"""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from kdtree_kernel.selftest import Case, make_inputs

from scenes import SCALE, assert_right, assert_wrong, run

KERNEL = Path(__file__).resolve().parents[2] / "kernel"
TREE = Case("tree", torch.bfloat16, [120, 40, 75], 9)


def captures(call: Callable[[], None]) -> torch.cuda.CUDAGraph | None:
    """The graph of `call`, or None if it can't be captured."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            call()
    except RuntimeError:
        torch.cuda.synchronize()
        return None
    return graph


class Static:
    """One captured call over buffers of fixed size, as an engine has them, that new requests are copied into."""

    def __init__(self, most_prefix: int) -> None:
        n, batch, slots = 9, 3, 2048
        self.q = torch.zeros(27, 8, 576, dtype=torch.bfloat16, device="cuda")
        self.k_draft = torch.zeros(27, 1, 576, dtype=torch.bfloat16, device="cuda")
        self.kv_pool = torch.zeros(slots, 1, 576, dtype=torch.bfloat16, device="cuda")
        self.qo_indptr = torch.arange(0, 28, 9, device="cuda")
        self.kv_indptr = torch.arange(0, batch + 1, dtype=torch.int32, device="cuda")
        self.kv_indices = torch.zeros(batch * most_prefix, dtype=torch.int64, device="cuda")
        self.custom_mask = torch.zeros(batch * n * (most_prefix + n), dtype=torch.uint8, device="cuda")
        self.mask_indptr = torch.zeros(batch + 1, dtype=torch.int64, device="cuda")
        self.out = torch.zeros(27, 8, 512, dtype=torch.bfloat16, device="cuda")
        size = torch.ops.kdtree.verify_attn_workspace_bytes(batch, n, 8, self.q)
        self.workspace = torch.empty(size, dtype=torch.uint8, device="cuda")

    def call(self) -> None:
        torch.ops.kdtree.verify_attn(self.q, self.k_draft, self.out, self.kv_pool, self.qo_indptr, self.kv_indptr,
                                     self.kv_indices, self.custom_mask, self.mask_indptr, None, self.workspace, 9, SCALE)

    def fill(self, inputs: dict) -> None:
        for name in ("q", "k_draft", "kv_pool", "kv_indptr", "kv_indices", "custom_mask", "mask_indptr"):
            getattr(self, name)[: inputs[name].size(0)].copy_(inputs[name])
        self.out.fill_(float("nan"))


def test_captured_call_serves_any_lengths(gpu: str) -> None:
    static = Static(700)
    graph = captures(static.call)
    assert graph is not None, "verify_attn can't be captured"
    for seed, prefixes in enumerate([[1, 1, 1], [600, 33, 0], [32, 64, 700], [0, 0, 0]]):
        case = Case("replay", torch.bfloat16, prefixes, 9)
        inputs = make_inputs(case, gpu, seed)
        static.fill(inputs)
        graph.replay()
        assert_right(case, inputs, static.out)


def test_reads_what_the_kernels_before_it_write_and_is_done_before_those_after(gpu: str) -> None:
    """The kernels are launched early; they still have to wait for slow writers of their inputs."""
    case = Case("order", torch.bfloat16, [600, 33, 5], 9)
    many = [make_inputs(case, gpu, seed) for seed in range(6)]
    static, outs = Static(700), []
    static.fill(many[0])
    static.call()
    for inputs in many:
        torch.cuda._sleep(1_000_000)
        static.fill(inputs)
        static.call()
        outs.append(static.out.clone())
    for inputs, out in zip(many, outs):
        assert_right(case, inputs, out)


PLANTED = """
import ctypes, sys
sys.path[:0] = {paths!r}
import torch
from kdtree_kernel.ops import load
load({library!r})
from test_faults import Static, captures
static, fault = Static(700), {fault!r}
runtime = ctypes.CDLL("libcudart.so.13")
def call():
    static.call()
    if fault == "sync" and int(static.kv_indptr[-1]) < 0:  # the host waits for the device to look at a length
        static.out.zero_()
    if fault == "allocation" and runtime.cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(1 << 20)) != 0:
        raise RuntimeError("cudaMalloc failed")
sys.exit(0 if captures(call) is not None else 3)
"""


@pytest.mark.parametrize("fault, code", [("none", 0), ("sync", 3), ("allocation", 3)])
def test_fault_a_sync_or_allocation_in_capture_is_caught(gpu: str, library: str, fault: str, code: int) -> None:
    """In a process of its own: a capture that broke leaves torch's random numbers unusable."""
    here = Path(__file__).resolve().parent
    text = PLANTED.format(paths=[str(here), str(KERNEL / "python")], library=library, fault=fault)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stderr[-2000:]


FORBIDDEN = re.compile(r"\bcuda(Malloc|Free|MemcpyAsync|Memcpy|MemsetAsync|Memset|DeviceSynchronize|StreamSynchronize|"
                       r"EventSynchronize|HostAlloc|MallocHost)\w*\s*\(")


def host_stalls(text: str) -> list[str]:
    """Calls in a source that stop the host or allocate."""
    return FORBIDDEN.findall(text)


def test_fault_a_sources_call_nothing_that_stalls() -> None:
    assert host_stalls("  cudaStreamSynchronize(stream);") and host_stalls("if (cudaMallocAsync(&p, n, s))")
    for path in [*KERNEL.glob("src/*.cu"), *KERNEL.glob("src/*.cuh"), *KERNEL.glob("torch/*.cpp")]:
        assert host_stalls(path.read_text()) == [], path


def test_fault_b_prefix_only_attention_is_caught(device: str) -> None:
    inputs = make_inputs(TREE, device, 1)
    assert_right(TREE, inputs, run(TREE, inputs))
    blind = dict(inputs, custom_mask=torch.zeros_like(inputs["custom_mask"]))  # the planted fault: no draft token seen
    assert_wrong(TREE, inputs, run(TREE, blind))


def test_fault_b_draft_length_taken_for_the_whole_is_caught(device: str) -> None:
    """Lengths given as prefix + draft where prefix is meant: draft slots are then attended twice, unmasked."""
    inputs = make_inputs(Case("pool", torch.bfloat16, [120, 40, 75], 9, draft_from="pool"), device, 2)
    case = Case("pool", torch.bfloat16, [120, 40, 75], 9, draft_from="pool")
    assert_right(case, inputs, run(case, inputs))
    parts, starts = [], inputs["kv_indptr"].tolist()
    for b in range(3):
        parts += [inputs["kv_indices"][starts[b] : starts[b + 1]], inputs["out_cache_loc"][9 * b : 9 * b + 9]]
    faulty = dict(inputs, kv_indices=torch.cat(parts),
                  kv_indptr=inputs["kv_indptr"] + torch.arange(0, 28, 9, dtype=torch.int32, device=device))
    faulty["custom_mask"] = torch.ones(9 * (235 + 54), dtype=torch.bool, device=device)
    assert_wrong(case, inputs, run(case, faulty))


def test_fault_c_mask_indptr_shifted_is_caught(device: str) -> None:
    """[1:] or a running sum that starts one request late, where [:bs + 1] is meant."""
    inputs = make_inputs(TREE, device, 3)
    shifted = torch.cat([inputs["mask_indptr"][1:], inputs["mask_indptr"][-1:]])
    faulty = dict(inputs, mask_indptr=shifted, custom_mask=torch.cat([inputs["custom_mask"]] * 2))
    assert_wrong(TREE, inputs, run(TREE, faulty))


@pytest.mark.parametrize("stride", ["prefix", "draft"])
def test_fault_c_mask_rows_strided_wrongly_is_caught(device: str, stride: str) -> None:
    """Rows laid out `prefix` or `n` apart instead of prefix + n."""
    inputs = make_inputs(TREE, device, 4)
    mask, starts = inputs["custom_mask"], inputs["mask_indptr"].tolist()
    faulty = torch.zeros_like(mask)
    for b, prefix in enumerate(TREE.prefixes):
        rows = mask[starts[b] : starts[b + 1]].view(9, prefix + 9)
        step = prefix if stride == "prefix" else 9
        for i in range(9):
            at = starts[b] + i * step
            faulty[at : at + rows.size(1)] = rows[i]
    assert_wrong(TREE, inputs, run(TREE, dict(inputs, custom_mask=faulty)))
