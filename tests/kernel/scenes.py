# SPDX-License-Identifier: Apache-2.0
"""Calls of verify_attn that the tests share; inputs and fp64 reference are the selftest's."""

from typing import Any

import torch

from kdtree_kernel import selftest
from kdtree_kernel.selftest import Case, MAX_RELATIVE, reference, worst_row

SCALE = 576**-0.5


def run(case: Case, inputs: dict[str, Any], **more: Any) -> torch.Tensor:
    """[tokens, heads, 512] of the op, output poisoned with NaN before."""
    return selftest.call(case, inputs, SCALE, **more)


def want(case: Case, inputs: dict[str, Any]) -> torch.Tensor:
    """[tokens, heads, 512] float64: what the op should have computed."""
    return reference(case, inputs, SCALE)


def assert_right(case: Case, inputs: dict[str, Any], out: torch.Tensor) -> None:
    """Every row within the type's tolerance of fp64."""
    difference = worst_row(out, want(case, inputs))
    assert difference <= MAX_RELATIVE[case.dtype], f"{case}: off by {difference:.3e} of a row's norm"


def assert_wrong(case: Case, inputs: dict[str, Any], out: torch.Tensor) -> None:
    """A planted fault must be seen, and by a margin that no rounding reaches."""
    assert worst_row(out, want(case, inputs)) > 5 * MAX_RELATIVE[case.dtype], f"{case}: the planted fault went unseen"
