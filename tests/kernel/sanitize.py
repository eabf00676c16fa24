# SPDX-License-Identifier: Apache-2.0
"""Small calls of every kernel, for compute-sanitizer: python sanitize.py LIBRARY. Checks results too."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "kernel" / "python"))
from kdtree_kernel.ops import load  # noqa: E402
from kdtree_kernel.selftest import (Case, call, check_gate_and_compare, check_observers, make_inputs, reference,  # noqa: E402
                                    worst_row)

CASES = [
    Case("one", torch.bfloat16, [40], 1),
    Case("nine", torch.bfloat16, [0, 33, 100], 9, mask="uint8", qo_dtype=torch.int32),
    Case("pool", torch.float16, [65], 9, draft_from="pool", index_dtype=torch.int32),
    Case("causal", torch.float16, [1, 31, 32, 33], 3, mask="none"),
    Case("wide", torch.bfloat16, [70], 33),
    Case("fp8", torch.bfloat16, [0, 33, 200], 9, mask="uint8", kv="fp8_e4m3", k_scale=0.5, v_scale=0.25),
    Case("fp8 wide", torch.float16, [70], 33, kv="fp8_e4m3", v_scale=2.0),
]


def main() -> None:
    """Exits non-zero if a result is wrong."""
    load(sys.argv[1])
    for case in CASES:
        inputs = make_inputs(case, "cuda", 1)
        difference = worst_row(call(case, inputs, 0.05), reference(case, inputs, 0.05))
        assert difference < 1e-2, f"{case.name}: {difference}"
    assert check_gate_and_compare("cuda") == ""
    assert check_observers("cuda") == ""
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
