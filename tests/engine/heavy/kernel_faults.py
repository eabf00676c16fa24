# SPDX-License-Identifier: Apache-2.0
"""Plants wrong answers in torch.ops.kdtree.verify_attn, inside a rank: a dispatch mode around each forward pass sees
the op's calls whoever makes them. The product stays as it is."""
from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from serving.faults import Faults

_OP = "kdtree::verify_attn"


class _Wrong(TorchDispatchMode):
    """Adds `delta` to the first output element of each head, or raises where `delta` is None."""

    def __init__(self, delta: float | None):
        super().__init__()
        self._delta = delta

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.name() != _OP:
            return func(*args, **(kwargs or {}))
        if self._delta is None:
            raise RuntimeError("test engine: kernel_raises, as asked")
        result = func(*args, **(kwargs or {}))
        out = (kwargs or {}).get("out", args[2] if len(args) > 2 else None)
        out.view(-1, 512)[:, 0] += self._delta
        return result


class KernelFaults:
    """A context around a forward pass; nothing at all while no fault is in force."""

    def __init__(self, faults: Faults, rank: int):
        self._faults, self._rank = faults, rank
        self._mode: TorchDispatchMode | None = None

    def __enter__(self) -> None:
        wrong = self._faults.hits("wrong_kernel", self._rank)
        if self._faults.hits("kernel_raises", self._rank) is not None:
            self._mode = _Wrong(None)
        elif wrong is not None:
            self._mode = _Wrong(float((wrong or ["0.5"])[0] or 0.5))
        if self._mode is not None:
            self._mode.__enter__()

    def __exit__(self, *error: Any) -> None:
        mode, self._mode = self._mode, None
        if mode is not None:
            mode.__exit__(*error)
