# SPDX-License-Identifier: Apache-2.0
"""Plants wrong answers in the stand-in kernel op and delays in the engine's own kernel, inside a rank, while the fault is in force."""
from __future__ import annotations

import time
from typing import Callable

from serving.faults import Faults
from sglang.kernels.ops.attention import extend_attention
from torch import _ops

_OP = "kdtree::verify_attn"


def plant(faults: Faults, rank: int) -> None:
    """Wraps the op as it registers, which is when the patch loads the kernel library."""
    extend_attention.before_verify = lambda: time.sleep(faults.number("slow_kernel", 0.5) or 0.0)
    _ops.registry = _Registry(_ops.registry, faults, rank)


class _Registry(dict):
    """The registry of ops, with the verify op behind the fault."""

    def __init__(self, ops: dict[str, Callable], faults: Faults, rank: int):
        super().__init__(ops)
        self._faults, self._rank = faults, rank

    def __getitem__(self, name: str) -> Callable:
        op = super().__getitem__(name)
        return self._faulty(op) if name == _OP else op

    def _faulty(self, op: Callable) -> Callable:
        wrong = self._faults.hits("wrong_kernel", self._rank)
        if self._faults.hits("kernel_raises", self._rank) is not None:
            def raises(*arguments: object, **named: object) -> None:
                raise RuntimeError("test engine: kernel_raises, as asked")

            return raises
        if wrong is None:
            return op

        def adds(*arguments: object, **named: object) -> None:
            op(*arguments, **named)
            out = named["out"] if "out" in named else arguments[2]
            storage, at, step = out._storage, out.storage_offset(), out.shape[-1]
            for place in range(at, at + out.numel(), step):
                storage[place] += float((wrong or ["0.5"])[0] or 0.5)

        return adds
