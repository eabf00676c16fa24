# SPDX-License-Identifier: Apache-2.0
"""Run by test_triton.py in its own process: SGLang's kernel over an e4m3 pool, under Triton's interpreter, against what it
should compute; and the op against the same without SGLang's rounding of the weights. Prints both distances as JSON.

The interpreter cuts off the bits that a cast to e4m3 loses; a GPU rounds to nearest and saturates. torch's cast takes its
place here."""

import json
import sys
from pathlib import Path

import numpy
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "kernel" / "python"))
import triton.language as tl  # noqa: E402
from kdtree_kernel.ops import load  # noqa: E402
from kdtree_kernel.selftest import Case, call, make_inputs, reference, worst_row  # noqa: E402
from sglang.kernels.ops.attention import extend_attention as theirs  # noqa: E402
from triton.runtime import interpreter  # noqa: E402

SCALE, E4M3 = 0.05, torch.float8_e4m3fn
cut_off = interpreter._convert_float
casts = []


def e4m3(x: torch.Tensor) -> torch.Tensor:
    """To nearest even, saturated."""
    return x.clamp(-448, 448).to(E4M3)


def convert(data, source, target, rounding):
    """The interpreter's cast, but to e4m3 by torch."""
    if target != tl.float8e4nv:
        return cut_off(data, source, target, rounding)
    casts.append(str(source))
    exact = torch.from_numpy(numpy.ascontiguousarray(data)).float()
    return e4m3(exact).view(torch.uint8).numpy()


def as_sglang(case: Case, i: dict, tile: int) -> torch.Tensor:
    """[tokens, heads, 512]: its loop over tiles with their running maximum, weights rounded to e4m3 in the prefix."""
    outs, start, n = [], 0, case.draft_tokens
    for b, prefix in enumerate(case.prefixes):
        rows = slice(b * n, (b + 1) * n)
        q, own = i["q"][rows], i["draft_rows"][rows, 0]
        pool = i["kv_pool"][i["kv_indices"][start : start + prefix].long(), 0]
        start += prefix
        parts = [(e4m3(q.float()), pool[at : at + tile], case.k_scale, case.v_scale, None) for at in range(0, prefix, tile)]
        parts += [(q, own[at : at + tile], 1.0, 1.0, i["visible"][b][:, at : at + tile]) for at in range(0, n, tile)]
        highest = torch.full((n, case.heads), -torch.inf, dtype=torch.float64)
        total, acc = torch.zeros_like(highest), torch.zeros(n, case.heads, 512, dtype=torch.float64)
        for queries, keys, k_scale, v_scale, visible in parts:
            s = torch.einsum("nhd,kd->nhk", queries.float().double(), keys.float().double()) * SCALE * k_scale
            if visible is not None:
                s = s.masked_fill(~visible[:, None, :], -torch.inf)
            raised = torch.maximum(highest, s.max(-1).values)
            weights, by = (s - raised[..., None]).exp(), (highest - raised).exp()
            highest, total = raised, total * by + weights.sum(-1)
            cast = e4m3(weights.float()) if visible is None else weights.to(q.dtype)
            acc = acc * by[..., None] + cast.float().double() @ keys[:, :512].float().double() * v_scale
        outs.append(acc / total[..., None])
    return torch.cat(outs)


def main() -> None:
    """One line of JSON."""
    load(sys.argv[1])
    interpreter._convert_float = convert
    tile = theirs._get_block_sizes_for_extend_attention(576, 512)[4]
    rows = []
    for mask, k_scale, v_scale in (("bool", 1.0, 1.0), ("none", 0.5, 0.25)):
        case = Case(f"{mask} {k_scale} {v_scale}", torch.float16, [70, 0, 1], 9, heads=2, mask=mask, kv="fp8_e4m3",
                    k_scale=k_scale, v_scale=v_scale)
        i = make_inputs(case, "cpu", 1)
        engines, k = torch.empty(27, 2, 512, dtype=torch.float16), i["k_draft"]
        theirs.extend_attention_fwd(i["q"], k, k[..., :512].contiguous(), engines, i["kv_pool"], i["kv_pool"][..., :512],
                                    i["qo_indptr"], i["kv_indptr"], i["kv_indices"], i["custom_mask"], True,
                                    i["mask_indptr"], 9, k_scale, v_scale, SCALE)
        exact = reference(case, i, SCALE)
        rows.append({"case": case.name, "sglang_as_said": worst_row(engines, as_sglang(case, i, tile)),
                     "op_exact": worst_row(call(case, i, SCALE), exact), "rounded_weights_cost": worst_row(engines, exact)})
    print(json.dumps({"rows": rows, "casts": len(casts)}))


if __name__ == "__main__":
    main()
