# SPDX-License-Identifier: Apache-2.0
"""The structs of <kdtree/gate.h> and <kdtree/compare.h> seen from Python, over any writable buffer of host memory.

No torch here: the buffer is `memoryview`-able memory, such as `tensor.numpy()` of a pinned uint8 tensor. A reader or
writer makes no CUDA call, so a thread of the engine may use these while a graph is replayed or captured.
"""

import struct
from typing import Any

GATE_WORD_BYTES = 64
COMPARE_ACCUM_BYTES = 4232
COMPARE_MAX_BATCH = 512

_COMPARE = struct.Struct("<QQQQdddqii")
_BY_BATCH_OFFSET = 128
_READ_ATTEMPTS = 1000


def set_mode(word: memoryview, mode: int) -> None:
    """Stores `mode` (0 off, 1 validate, 2 on) in a gate word: one aligned 4-byte store.

    Raises ValueError for any other mode.
    """
    if mode not in (0, 1, 2):
        raise ValueError(f"mode must be 0, 1 or 2, got {mode}")
    word.cast("B").cast("I")[0] = mode


def read_gate(word: memoryview) -> dict[str, Any]:
    """{"mode": the mode asked for, "steps": [gates run in off, validate, on]} of a gate word."""
    words = word.cast("B").cast("Q")
    return {"mode": word.cast("B").cast("I")[0], "steps": [words[1], words[2], words[3]]}


def read_compare(accum: memoryview) -> dict[str, Any] | None:
    """The fields of a compare accumulator, `compares_by_batch` as {requests: compares}; None if it never stood still.

    Units as in compare.h; requests 0 stands for batches above 512. `worst_layer` and `worst_request` are -1 while
    nothing differed.
    """
    view = accum.cast("B")
    sequence = view.cast("Q")
    for _ in range(_READ_ATTEMPTS):
        before = sequence[0]
        raw = bytes(view[:COMPARE_ACCUM_BYTES])
        if before % 2 == 0 and sequence[0] == before:
            break
    else:
        return None
    fields = _COMPARE.unpack_from(raw)
    names = ("sequence", "compares", "mismatches", "skipped", "max_abs", "max_ulp", "sum_mean_abs", "longest_prefix",
             "worst_layer", "worst_request")
    result: dict[str, Any] = dict(zip(names, fields))
    if result["max_ulp"] == 0:
        result["worst_layer"] = result["worst_request"] = -1
    counts = struct.unpack_from(f"<{COMPARE_MAX_BATCH + 1}Q", raw, _BY_BATCH_OFFSET)
    result["compares_by_batch"] = {batch: count for batch, count in enumerate(counts) if count}
    return result
