# SPDX-License-Identifier: Apache-2.0
"""Proves the ops on this machine, against an fp64 reference written in torch and independent of the library's own.

    python -m kdtree_kernel.selftest --lib PATH [--device cuda|cpu] --json

Exit 0 if all passed, 1 if any failed or nothing could be run. The JSON holds the device it really ran on.

KV pools of another type than q are tested apart, each type in a process of its own: whatever happens there, the rest is
proven or not by itself. "proven_kv" lists the types that passed, "unproven_kv" says of the others why not.
"""

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import torch

from kdtree_kernel import abi
from kdtree_kernel.ops import load

MAX_RELATIVE = {torch.bfloat16: 8e-3, torch.float16: 2e-3, torch.float32: 1e-4}
"""Most that a row may differ from fp64: |out - want|_2 / |want|_2. Two roundings of the type, of P and of the output."""


@dataclass
class Case:
    """One random verify call; `prefixes` holds each request's committed tokens."""

    name: str
    dtype: torch.dtype
    prefixes: list[int]
    draft_tokens: int
    heads: int = 8
    mask: str = "bool"  # none | bool | uint8
    draft_from: str = "array"  # array | pool
    qo_dtype: torch.dtype = torch.int64
    index_dtype: torch.dtype = torch.int64
    kv: str = "same"  # same | fp8_e4m3
    k_scale: float = 1.0
    v_scale: float = 1.0


KV_DTYPES = {"fp8_e4m3": torch.float8_e4m3fn}
KV_TIMEOUT_S = 300


def random_tree(n: int, generator: torch.Generator) -> torch.Tensor:
    """[n, n] bool, parents before children: node i sees its ancestors and itself."""
    visible = torch.zeros(n, n, dtype=torch.bool)
    for i in range(n):
        if i > 0:
            parent = int(torch.randint(0, i, (1,), generator=generator))
            visible[i] = visible[parent]
        visible[i, i] = True
    return visible


def make_inputs(case: Case, device: str, seed: int) -> dict[str, Any]:
    """All tensors of a call, slots scattered at random, mask prefix columns random (they must not matter)."""
    g = torch.Generator().manual_seed(seed)
    batch, n = len(case.prefixes), case.draft_tokens
    tokens, total = batch * n, sum(case.prefixes)
    slots = torch.randperm(total + tokens + 16, generator=g) + 1
    pool = torch.randn(slots.numel() + 1, 1, 576, generator=g).to(case.dtype)
    k_draft = torch.randn(tokens, 1, 576, generator=g).to(case.dtype)
    loc = slots[total : total + tokens]
    if case.draft_from == "pool":
        pool[loc] = k_draft
    if case.kv != "same":
        pool = (pool / case.k_scale).to(KV_DTYPES[case.kv])
    trees = [random_tree(n, g) for _ in case.prefixes]
    flat = [torch.cat([torch.rand(n, p, generator=g) < 0.5, tree], dim=1).flatten()
            for p, tree in zip(case.prefixes, trees)]
    sizes = torch.tensor([0] + [n * (p + n) for p in case.prefixes])
    custom_mask = torch.cat(flat)
    if case.mask == "uint8":
        custom_mask = custom_mask.to(torch.uint8) * 7
    inputs = {
        "q": torch.randn(tokens, case.heads, 576, generator=g).to(case.dtype),
        "k_draft": k_draft if case.draft_from == "array" else None,
        "kv_pool": pool,
        "qo_indptr": torch.arange(0, tokens + 1, n, dtype=case.qo_dtype),
        "kv_indptr": torch.tensor([0] + case.prefixes).cumsum(0).to(torch.int32),
        "kv_indices": slots[:total].to(case.index_dtype),
        "custom_mask": None if case.mask == "none" else custom_mask,
        "mask_indptr": None if case.mask == "none" else sizes.cumsum(0),
        "out_cache_loc": loc.to(case.index_dtype),
    }
    on_device = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in inputs.items()}
    causal = torch.ones(n, n, dtype=torch.bool).tril()
    on_device["visible"] = [causal if case.mask == "none" else tree for tree in trees]
    on_device["draft_rows"] = k_draft
    return on_device


def reference(case: Case, inputs: dict[str, Any], sm_scale: float) -> torch.Tensor:
    """[tokens, heads, 512] float64 on the CPU, from the definition: softmax over prefix and visible draft tokens."""
    n, outs = case.draft_tokens, []
    q, pool = inputs["q"].cpu().double(), inputs["kv_pool"].cpu().float().double()[:, 0]
    q_for_prefix, k_scale, v_scale = q, 1.0, 1.0
    if case.kv != "same":
        limit = torch.finfo(KV_DTYPES[case.kv]).max
        q_for_prefix = inputs["q"].cpu().float().clamp(-limit, limit).to(KV_DTYPES[case.kv]).float().double()
        k_scale, v_scale = case.k_scale, case.v_scale
    indices, drafts = inputs["kv_indices"].cpu().long(), inputs["draft_rows"].cpu().double()[:, 0]
    start = 0
    for b, prefix in enumerate(case.prefixes):
        rows, own = slice(b * n, (b + 1) * n), pool[indices[start : start + prefix]]
        start += prefix
        scores = torch.cat([torch.einsum("nhd,kd->nhk", q_for_prefix[rows], own) * k_scale,
                            torch.einsum("nhd,kd->nhk", q[rows], drafts[rows])], dim=2) * sm_scale
        hidden = torch.cat([torch.zeros(n, prefix, dtype=torch.bool), ~inputs["visible"][b]], dim=1)
        weights = scores.masked_fill(hidden[:, None, :], float("-inf")).softmax(-1)
        outs.append(weights @ torch.cat([own[:, :512] * v_scale, drafts[rows, :512]]))
    return torch.cat(outs)


def call(case: Case, inputs: dict[str, Any], sm_scale: float, **more: Any) -> torch.Tensor:
    """Runs the op into an output poisoned with NaN; returns [tokens, heads, 512] in the case's type."""
    q = inputs["q"]
    out = torch.full((q.size(0), case.heads, 512), float("nan"), dtype=q.dtype, device=q.device)
    bytes_needed = torch.ops.kdtree.verify_attn_workspace_bytes(len(case.prefixes), case.draft_tokens, case.heads, q)
    workspace = torch.empty(bytes_needed, dtype=torch.uint8, device=q.device)
    names = ("kv_pool", "qo_indptr", "kv_indptr", "kv_indices", "custom_mask", "mask_indptr", "out_cache_loc")
    torch.ops.kdtree.verify_attn(q, inputs["k_draft"], out, *(inputs[name] for name in names), workspace,
                                 case.draft_tokens, sm_scale, k_scale=case.k_scale, v_scale=case.v_scale, **more)
    return out


def worst_row(out: torch.Tensor, want: torch.Tensor) -> float:
    """Largest |out - want|_2 / |want|_2 over rows; Inf where any element is not finite."""
    got = out.cpu().double()
    if not bool(got.isfinite().all()):
        return float("inf")
    return float(((got - want).norm(dim=-1) / want.norm(dim=-1).clamp_min(1e-30)).max())


def default_cases(device: str) -> list[Case]:
    """Small enough for any machine, together over every branch: mask kinds, index types, tails, batches, both sources."""
    long, halves = ([4097], [torch.bfloat16, torch.float16]) if device == "cuda" else ([1000], [torch.bfloat16])
    cases = []
    for dtype in halves:
        kind = str(dtype).removeprefix("torch.")
        cases += [
            Case(f"{kind} tree", dtype, [1000], 9),
            Case(f"{kind} batch", dtype, [0, 1, 15, 16, 17, 130], 9, mask="uint8", qo_dtype=torch.int32),
            Case(f"{kind} causal", dtype, [300, 33], 16, mask="none", index_dtype=torch.int32),
            Case(f"{kind} pool", dtype, [65, 7], 5, draft_from="pool"),
            Case(f"{kind} wide", dtype, [200], 65),
            Case(f"{kind} long", dtype, long, 9),
        ]
    if device == "cpu":
        cases.append(Case("float16 tree", torch.float16, [100], 9, heads=2))
        cases.append(Case("float32 tree", torch.float32, [100], 9, heads=2))
    return cases


def kv_cases(kv: str, device: str) -> list[Case]:
    """The same for a pool of another type than q."""
    long = [4097] if device == "cuda" else [500]
    cases = []
    for dtype in (torch.bfloat16, torch.float16) if device == "cuda" else (torch.bfloat16,):
        kind = f"{kv} under {str(dtype).removeprefix('torch.')}"
        scales = {"kv": kv, "k_scale": 0.5, "v_scale": 0.25}
        cases += [
            Case(f"{kind} unscaled", dtype, [300], 9, kv=kv),
            Case(f"{kind} batch", dtype, [0, 1, 31, 32, 33, 130], 9, mask="uint8", qo_dtype=torch.int32, **scales),
            Case(f"{kind} causal", dtype, [130, 33], 16, mask="none", index_dtype=torch.int32, **scales),
            Case(f"{kind} one", dtype, [200], 1, **scales),
            Case(f"{kind} few", dtype, [65, 7], 3, **scales),
            Case(f"{kind} wide", dtype, [100], 65, **scales),
            Case(f"{kind} long", dtype, long, 9, **scales),
        ]
    return cases


def check_gate_and_compare(device: str) -> str:
    """'' if gate and compare do what their headers say, else what went wrong."""
    pin = device == "cuda"
    word = torch.zeros(abi.GATE_WORD_BYTES, dtype=torch.uint8, pin_memory=pin)
    accum = torch.zeros(abi.COMPARE_ACCUM_BYTES, dtype=torch.uint8, pin_memory=pin)
    qo = torch.tensor([0, 3, 6], device=device)
    kv = torch.tensor([0, 5, 12], dtype=torch.int32, device=device)
    flags = torch.zeros(abi.GATE_FLAGS, dtype=torch.int32, device=device)
    for mode, want in ((0, [0, 0, 1, 0]), (1, [2, 1, 1, 1]), (2, [1, 0, 0, 2])):
        want = want + [0] * 4
        abi.set_mode(memoryview(word.numpy()), mode)
        gated_qo, gated_kv = torch.full_like(qo, -1), torch.full_like(kv, -1)
        torch.ops.kdtree.gate(word, qo, kv, gated_qo, gated_kv, flags)
        if flags.tolist() != want:
            return f"gate: mode {mode} gave flags {flags.tolist()}, not {want}"
        if gated_qo.tolist() != (qo * want[2]).tolist() or gated_kv.tolist() != (kv * want[2]).tolist():
            return f"gate: mode {mode} gave {gated_qo.tolist()} and {gated_kv.tolist()}"
    engines = torch.ones(6, 2, 512, dtype=torch.bfloat16, device=device)
    ours = engines.clone()
    workspace = torch.zeros(1 << 16, dtype=torch.uint8, device=device)
    torch.ops.kdtree.compare(ours, engines, kv, 7, accum, workspace)
    ours[4, 1, 3] += 0.125  # 16 ULP at 1.0
    torch.ops.kdtree.compare(ours, engines, kv, 8, accum, workspace)
    if device == "cuda":
        torch.cuda.synchronize()
    seen = abi.read_compare(memoryview(accum.numpy()))
    want = {"compares": 2, "mismatches": 1, "max_abs": 0.125, "max_ulp": 16.0, "longest_prefix": 7, "worst_layer": 8,
            "worst_request": 1, "worst_batch": 2, "worst_head": 1, "worst_prefix": 7, "compares_by_batch": {2: 2}}
    wrong = {k: None if seen is None else seen[k] for k, v in want.items() if seen is None or seen[k] != v}
    return f"compare: {wrong} instead of {want}" if wrong else ""


def check_observers(device: str) -> str:
    """'' if slots and moe count what torch counts, else what went wrong."""
    pin, shape = device == "cuda", (3, 384, 8)
    g = torch.Generator().manual_seed(3)
    counts = torch.zeros(abi.SLOT_COUNTS_BYTES, dtype=torch.uint8, pin_memory=pin)
    slots = torch.randint(0, 40, (300,), generator=g).to(device)
    kv = torch.tensor([0, 100, 300], dtype=torch.int32, device=device)
    torch.ops.kdtree.slots(kv, slots, counts)
    size = torch.ops.kdtree.moe_table_bytes(*shape, slots)
    table = torch.zeros(size, dtype=torch.uint8, device=device)
    copy = torch.zeros(size, dtype=torch.uint8, pin_memory=pin)
    ids = torch.randint(0, 384, (40, 8), generator=g, dtype=torch.int32)
    torch.ops.kdtree.moe_begin(table, *shape, 33)
    torch.ops.kdtree.moe_count(table, *shape, 1, ids.to(device))
    torch.ops.kdtree.moe_end(table, *shape, copy, 0, 2)
    if device == "cuda":
        torch.cuda.synchronize()
    follow = int((slots[:100].diff() == 1).sum() + (slots[100:].diff() == 1).sum())
    seen = abi.read_slots(memoryview(counts.numpy()))
    if seen != {"pairs": 298, "contiguous": follow, "looks": 1}:
        return f"slots: {seen}, not {follow} of 298"
    routed = abi.read_moe(memoryview(copy.numpy()), *shape)
    want = torch.bincount(ids[:33].flatten().long(), minlength=384)
    if routed["experts"][1] != want.tolist() or routed["unique"] != [0, int((want > 0).sum()), 0]:
        return "moe: other counts than torch.bincount"
    loads = want.view(8, -1).sum(1)
    most, fullest = int(loads.max()), int((loads == loads.max()).sum())
    shares = [abi.MOE_SHARE // fullest if load == most else 0 for load in loads.tolist()]
    if (routed["peak"][1], routed["straggler"][1], routed["idle"][1]) != (most, shares, (loads == 0).long().tolist()):
        return f"moe: another fullest rank than of loads {loads.tolist()}"
    return "" if (routed["steps"], routed["tokens"]) == (1, 33) else f"moe: {routed['steps']} steps"


def run_cases(cases: list[Case], device: str, report: dict[str, Any], seed: int = 1) -> None:
    """Adds the cases' results to the report."""
    sm_scale = 576**-0.5
    for i, case in enumerate(cases):
        inputs = make_inputs(case, device, seed + i)
        difference = worst_row(call(case, inputs, sm_scale), reference(case, inputs, sm_scale))
        report["cases"] += 1
        if difference >= report["worst"].get("relative", -1.0):
            report["worst"] = {"case": case.name, "relative": difference}
        if not difference <= MAX_RELATIVE[case.dtype]:
            report["failures"].append(f"{case.name}: off by {difference:.2e} of the row's norm, "
                                      f"at most {MAX_RELATIVE[case.dtype]:.0e} is allowed")


def run_apart(kv: str, library: str, device: str) -> dict[str, Any]:
    """This module's report for one KV type, of a process of its own; a failure where it gave none."""
    command = [sys.executable, "-m", "kdtree_kernel.selftest", "--lib", library, "--device", device, "--kv", kv, "--json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=KV_TIMEOUT_S, check=False)
        report = json.loads(done.stdout.splitlines()[-1])
        return report if isinstance(report, dict) else {"passed": False, "failures": ["no report"]}
    except subprocess.TimeoutExpired:
        return {"passed": False, "failures": [f"no answer within {KV_TIMEOUT_S} s"]}
    except (OSError, IndexError, ValueError):
        return {"passed": False, "failures": ["the process ended without a report"]}


def run(library: str, device: str, kv: str = "") -> dict[str, Any]:
    """Runs every case on `device` ("cuda" or "cpu"), or those of one KV type; returns the report that --json prints."""
    report: dict[str, Any] = {"passed": True, "device": "cpu", "cases": 0, "worst": {}, "failures": [],
                              "torch": torch.__version__}
    if device == "cuda":
        report["device"] = torch.cuda.get_device_name()
    if kv:
        run_cases(kv_cases(kv, device), device, report)
    else:
        run_cases(default_cases(device), device, report)
        for check in (check_gate_and_compare, check_observers):
            report["cases"] += 1
            if wrong := check(device):
                report["failures"].append(wrong)
        report["proven_kv"], report["unproven_kv"] = [], {}
        for other in KV_DTYPES:
            apart = run_apart(other, library, device)
            if apart["passed"]:
                report["proven_kv"].append(other)
                report["cases"] += apart["cases"]
            else:
                report["unproven_kv"][other] = str(next(iter(apart.get("failures") or ["no reason given"])))
    report["passed"] = not report["failures"]
    return report


def main() -> int:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="kdtree_kernel.selftest", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--lib", required=True, help="path of libkdtree_torch.so")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="default: cuda where there is a GPU")
    parser.add_argument("--kv", choices=sorted(KV_DTYPES), help="only the cases of this type of KV pool")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    options = parser.parse_args()
    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        if device == "cuda" and not torch.cuda.is_available():
            raise RuntimeError("torch sees no GPU; run with --device cpu to test the CPU implementation")
        load(options.lib)
        report = run(options.lib, device, options.kv or "")
    except (OSError, RuntimeError) as error:
        report = {"passed": False, "device": device, "cases": 0, "worst": {}, "torch": torch.__version__,
                  "failures": [str(error).splitlines()[0]]}
    if options.json:
        print(json.dumps(report))
    else:
        print(f"{'passed' if report['passed'] else 'FAILED'}: {report['cases']} cases on {report['device']}, "
              f"worst {report['worst']}")
        for line in report["failures"]:
            print(line, file=sys.stderr)
        for other, why in report.get("unproven_kv", {}).items():
            print(f"{other} KV is not proven: {why}", file=sys.stderr)
    return 0 if report["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
