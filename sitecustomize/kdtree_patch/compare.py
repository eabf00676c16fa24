# SPDX-License-Identifier: Apache-2.0
"""What validate found: the accumulator that torch.ops.kdtree.compare adds to (kernel/include/kdtree/compare.h), and
what slots found (slots.h)."""
import math
import struct

from .pinned import Pinned

_HEAD = struct.Struct("<QQQQdddqiiiiqd")  # sequence, compares, mismatches, skipped, max_abs, max_ulp, sum_mean_ulp,
#                                          longest_prefix, worst_layer, _request, _batch, _head, _prefix, max_mean_ulp
_BY_BATCH_AT = 128
_MAX_BATCH = 512
_SLOTS = struct.Struct("<QQQ")  # sequence, pairs, contiguous
SLOTS_BYTES = 64
_WORST = ("worst_layer", "worst_request", "worst_batch", "worst_head", "worst_prefix")


class Accumulator(Pinned):
    """Made at the first compare."""

    def __init__(self) -> None:
        super().__init__(_BY_BATCH_AT + 8 * (_MAX_BATCH + 1))

    def values(self) -> tuple[dict[str, object], dict[int, int]]:
        """Stats fields, and compares by batch size (0 = larger than counted apart); both {} before the first compare."""
        raw = self.read()
        return decode(raw) if raw else ({}, {})


def decode(raw: bytes) -> tuple[dict[str, object], dict[int, int]]:
    """As Accumulator.values(), from a consistent copy."""
    _, compares, mismatches, _, max_abs, max_ulp, sum_mean, longest, *worst, max_mean = _HEAD.unpack_from(raw)
    if not compares:
        return {}, {}
    values = {"compares": compares, "mismatches": mismatches, "max_abs": max_abs, "max_ulp": max_ulp,
              "sum_mean_ulp": sum_mean if math.isfinite(sum_mean) else math.inf, "max_mean_ulp": max_mean,
              "longest_prefix": max(longest, 0)}
    if max_ulp > 0:
        values.update(zip(_WORST, worst))
    counts = struct.unpack_from(f"<{_MAX_BATCH + 1}Q", raw, _BY_BATCH_AT)
    return values, {batch: count for batch, count in enumerate(counts) if count}


class SlotCounts(Pinned):
    """Made at the first look."""

    def __init__(self) -> None:
        super().__init__(SLOTS_BYTES)

    def values(self) -> dict[str, int]:
        """Stats fields; {} before the first look."""
        raw = self.read()
        if raw is None:
            return {}
        _, pairs, contiguous = _SLOTS.unpack_from(raw)
        return {"kv_pairs": pairs, "kv_contiguous_pairs": contiguous}
