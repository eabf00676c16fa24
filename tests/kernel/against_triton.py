# SPDX-License-Identifier: Apache-2.0
"""Run by test_triton.py in its own process: prints, as JSON, how far the op and SGLang's kernel are apart, per case."""

import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "kernel" / "python"))
from kdtree_kernel.ops import load  # noqa: E402
from kdtree_kernel.selftest import Case, call, make_inputs, worst_row  # noqa: E402
from sglang.kernels.ops.attention.extend_attention import extend_attention_fwd  # noqa: E402

SCALE = 0.05


def main() -> None:
    """Both kernels over the same tensors; the difference is relative to a row's norm."""
    load(sys.argv[1])
    rows = []
    for dtype, allowed in ((torch.float16, 2e-3), (torch.float32, 1e-4)):
        for mask in ("bool", "uint8", "none"):
            case = Case(f"{dtype} {mask}", dtype, [40, 0, 1, 65], 9, heads=2, mask=mask)
            i = make_inputs(case, "cpu", 1)
            if i["custom_mask"] is not None and mask == "uint8":
                i["custom_mask"] = (i["custom_mask"] != 0).to(torch.uint8)
            engines = torch.empty(36, 2, 512, dtype=dtype)
            k = i["k_draft"]
            extend_attention_fwd(i["q"], k, k[..., :512].contiguous(), engines, i["kv_pool"], i["kv_pool"][..., :512],
                                 i["qo_indptr"], i["kv_indptr"], i["kv_indices"], i["custom_mask"], True,
                                 i["mask_indptr"], 9, 1.0, 1.0, SCALE)
            rows.append({"case": case.name, "allowed": allowed,
                         "difference": worst_row(call(case, i, SCALE), engines.double())})
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
