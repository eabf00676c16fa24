# SPDX-License-Identifier: Apache-2.0
"""The limits of compare against what two right kernels do: none differs by more, and planted faults do.

A right kernel rounds P to V's type, sums in fp32 and rounds the output. `softmax_v` is one, in torch, with the tiles and the
running maximum that it is given: `ENGINE` is SGLang's way, `OURS` that of the CUDA kernel.
"""

import math
from typing import Any

import pytest
import torch
from kdtree_kernel import COMPARE_ACCUM_BYTES, read_compare
from kdtree_kernel.selftest import Case, make_inputs, reference

from scenes import SCALE, run

ENGINE = {"tile": 64, "raise_above": 0.0}
OURS = {"tile": 32, "raise_above": 8.0}
MAX_ULP, MEAN_ULP = 4.0, 0.5


def softmax_v(scores: torch.Tensor, values: torch.Tensor, tile: int, raise_above: float) -> torch.Tensor:
    """[rows, 512] in the type of `values` [keys, 512], from scores [rows, keys] (fp32, -inf = not seen)."""
    scores, rows = scores.float() * math.log2(math.e), scores.shape[0]
    highest, total, out = torch.full((rows, 1), -1e30), torch.zeros(rows, 1), torch.zeros(rows, 512)
    for part, v in zip(scores.split(tile, 1), values.split(tile)):
        top = part.amax(1, keepdim=True)
        raised = torch.where(top - highest > raise_above, torch.maximum(top, highest), highest)
        factor, weights = torch.exp2(highest - raised), torch.exp2(part - raised)
        total = total * factor + weights.sum(1, keepdim=True)
        out = out * factor + weights.to(values.dtype).float() @ v.float()
        highest = raised
    return (out / total).to(values.dtype)


def compared(ours: torch.Tensor, engines: torch.Tensor, device: str, batch: int = 1) -> dict[str, Any]:
    """What compare says of [tokens, heads, 512]."""
    accum = torch.zeros(COMPARE_ACCUM_BYTES, dtype=torch.uint8, pin_memory=device == "cuda")
    bounds = torch.arange(batch + 1, dtype=torch.int32, device=device)
    workspace = torch.zeros(1 << 16, dtype=torch.uint8, device=device)
    torch.ops.kdtree.compare(ours.to(device), engines.to(device), bounds, 0, accum, workspace)
    if device == "cuda":
        torch.cuda.synchronize()
    seen = read_compare(memoryview(accum.numpy()))
    assert seen is not None and seen["max_mean_ulp"] == seen["sum_mean_ulp"], "one compare"
    return seen


def scene(name: str, keys: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores [16, keys] and values [keys, 512], fp32."""
    g = torch.Generator().manual_seed(seed)
    scores, values = torch.randn(16, keys, generator=g), torch.randn(keys, 512, generator=g)
    signs = torch.sign(torch.randn(keys, 512, generator=g)) * 1.99  # just below a power of two: the most ULP a value can have
    if name == "sharp":
        scores *= 6
    elif name == "one key of all, as large as a running maximum may stay behind":
        scores, values = torch.full((16, keys), -12.0), signs
        scores[:, 0], scores[:, -1] = 0, 5.5 * torch.rand(16, generator=g)
    elif name == "each key above the one before":
        scores, values = torch.arange(keys) * 0.6 + 0.1 * scores, signs
    elif name == "equal scores":
        scores = torch.zeros(16, keys)
    elif name == "values of one size":
        values = signs
    elif name == "one value":
        values = torch.full((keys, 512), 1.99)
    elif name == "a half cancels":
        scores *= 0.01
        values[1::2, :256] = -values[: keys // 2 * 2 : 2, :256]
        values[:, 256:] = values[:1, 256:]
    elif name == "all cancels":
        scores *= 0.01
        values[1::2] = -values[: keys // 2 * 2 : 2]
    elif name.startswith("times "):
        values *= float(name.split()[1])
    return scores, values


CLEAN = ["random", "sharp", "one key of all, as large as a running maximum may stay behind", "each key above the one before",
         "equal scores", "values of one size", "one value", "a half cancels", "times 1e-4", "times 1e3", "times 1e-39"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", CLEAN)
def test_two_right_kernels_are_clean(device: str, name: str, dtype: torch.dtype) -> None:
    for keys in (2, 9, 100, 700):
        for seed in range(2):
            scores, values = scene(name, keys, seed)
            values = values.to(dtype)
            ours, engines = (softmax_v(scores, values, **way).view(2, 8, 512) for way in (OURS, ENGINE))
            seen = compared(ours, engines, device)
            assert seen["mismatches"] == 0 and seen["max_ulp"] <= MAX_ULP, (keys, seed, seen)
            assert seen["max_mean_ulp"] < MEAN_ULP, (keys, seed, seen)


def test_where_all_of_a_row_cancels_neither_limit_holds(device: str) -> None:
    """Nothing in the two outputs says how large the values were that cancelled: the header says so."""
    scores, values = scene("all cancels", 300, 0)
    ours, engines = (softmax_v(scores, values.bfloat16(), **way).view(2, 8, 512) for way in (OURS, ENGINE))
    seen = compared(ours, engines, device)
    assert seen["max_ulp"] > MAX_ULP and seen["max_mean_ulp"] > MEAN_ULP


def engine_of(case: Case, inputs: dict[str, Any], scale: float) -> torch.Tensor:
    """SGLang's way over the op's inputs: [tokens, heads, 512]."""
    q, pool, drafts = (inputs[name].cpu() for name in ("q", "kv_pool", "draft_rows"))
    indices, n, start, outs = inputs["kv_indices"].cpu().long(), case.draft_tokens, 0, []
    for b, prefix in enumerate(case.prefixes):
        keys = torch.cat([pool[indices[start : start + prefix], 0], drafts[b * n : (b + 1) * n, 0]])
        start += prefix
        scores = torch.einsum("nhd,kd->nhk", q[b * n : (b + 1) * n].float(), keys.float()) * scale
        hidden = torch.cat([torch.zeros(n, prefix, dtype=torch.bool), ~inputs["visible"][b].cpu()], dim=1)
        scores = scores.masked_fill(hidden[:, None, :], float("-inf")).flatten(0, 1)
        outs.append(softmax_v(scores, keys[:, :512], **ENGINE).view(n, case.heads, 512))
    return torch.cat(outs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("prefixes", [[0, 1, 3, 16], [130, 2], [700]], ids=str)
def test_the_op_against_sglangs_way_is_clean(device: str, prefixes: list[int], dtype: torch.dtype) -> None:
    case = Case("limits", dtype, prefixes, 9)
    for seed in range(2):
        inputs = make_inputs(case, device, seed)
        seen = compared(run(case, inputs), engine_of(case, inputs, SCALE), device, len(prefixes))
        assert seen["mismatches"] == 0 and 0 < seen["max_mean_ulp"] < MEAN_ULP, (seed, seen)


FAULTED = Case("fault", torch.bfloat16, [40, 75, 120], 9)


def faulty(fault: str, inputs: dict[str, Any]) -> torch.Tensor:
    """fp64's answer with a fault, in bf16."""
    wrong, n = dict(inputs), FAULTED.draft_tokens
    if fault == "prefix only":
        wrong["visible"] = [torch.zeros(n, n, dtype=torch.bool)] * 3
    elif fault == "mask_indptr":
        wrong["visible"] = [inputs["visible"][1], inputs["visible"][1], inputs["visible"][2]]
    out = reference(FAULTED, wrong, SCALE).bfloat16()
    if fault == "one head":
        row = out[n : 2 * n, 3].float()
        unit = torch.exp2(torch.floor(torch.log2(row.abs().amax(1, keepdim=True)))) / 128
        out[n : 2 * n, 3] = (row + 8 * unit * torch.sign(row)).bfloat16()
    return out


@pytest.mark.parametrize("fault, mismatches", [("none", 0), ("one head", 1), ("prefix only", 1), ("mask_indptr", 1)])
def test_a_planted_fault_is_over_the_mean_alone(device: str, fault: str, mismatches: int) -> None:
    """Also the one that spares all but one head of one request of three: the mean is a request's, not the batch's."""
    inputs = make_inputs(FAULTED, "cpu", 5)
    engines = reference(FAULTED, inputs, SCALE).bfloat16()
    seen = compared(faulty(fault, inputs), engines, device, 3)
    assert (seen["max_mean_ulp"] > MEAN_ULP, seen["mismatches"]) == (bool(mismatches), mismatches), seen
