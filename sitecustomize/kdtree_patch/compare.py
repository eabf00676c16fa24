# SPDX-License-Identifier: Apache-2.0
"""What validate found: the accumulator that torch.ops.kdtree.compare adds to (kernel/include/kdtree/compare.h)."""
import math
import struct

_HEAD = struct.Struct("<QQQQdddqii")  # sequence, compares, mismatches, skipped, max_abs, max_ulp, sum_mean_abs,
#                                       longest_prefix, worst_layer, worst_request
_BY_BATCH_AT = 128
_MAX_BATCH = 512
BYTES = _BY_BATCH_AT + 8 * (_MAX_BATCH + 1)
_READS = 5


class Accumulator:
    """Made at the first compare, in memory that the host can read while the GPU writes it: no CUDA call to look at it.

    Concurrency: one reader; a read that meets a change returns what was read before."""

    def __init__(self, torch: object):
        self._torch = torch
        self._last: tuple[dict[str, object], dict[int, int]] = ({}, {})
        self.tensor = None

    def make(self, on_gpu: bool) -> object:
        """uint8 [BYTES], zero at first; the same one each time."""
        if self.tensor is None:
            self.tensor = self._torch.zeros(BYTES, dtype=self._torch.uint8, pin_memory=on_gpu)
        return self.tensor

    def read(self) -> tuple[dict[str, object], dict[int, int]]:
        """Stats fields, and compares by batch size (0 = larger than counted apart); both {} before the first compare."""
        for _ in range(_READS if self.tensor is not None else 0):
            raw = bytes(self.tensor.tolist())
            if raw[0] % 2 == 0 and bytes(self.tensor[:8].tolist()) == raw[:8]:
                self._last = decode(raw)
                break
        return self._last


def decode(raw: bytes) -> tuple[dict[str, object], dict[int, int]]:
    """As Accumulator.read(), from a consistent copy."""
    _, compares, mismatches, _, max_abs, max_ulp, sum_mean, longest, layer, request = _HEAD.unpack_from(raw)
    if not compares:
        return {}, {}
    worst = max_ulp > 0
    values = {"compares": compares, "mismatches": mismatches, "max_abs": max_abs, "max_ulp": max_ulp,
              "sum_mean_abs": sum_mean if math.isfinite(sum_mean) else math.inf, "longest_prefix": max(longest, 0),
              "worst_layer": layer if worst else -1, "worst_request": request if worst else -1}
    counts = struct.unpack_from(f"<{_MAX_BATCH + 1}Q", raw, _BY_BATCH_AT)
    return values, {batch: count for batch, count in enumerate(counts) if count}
