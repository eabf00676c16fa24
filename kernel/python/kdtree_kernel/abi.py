# SPDX-License-Identifier: Apache-2.0
"""The structs of <kdtree/gate.h>, compare.h, slots.h and moe.h seen from Python, over any writable buffer of host memory.

No torch here: the buffer is `memoryview`-able memory, such as `tensor.numpy()` of a pinned uint8 tensor. A reader or
writer makes no CUDA call, so a thread of the engine may use these while a graph is replayed or captured.
"""

import struct
from typing import Any

GATE_WORD_BYTES = 64
GATE_FLAGS = 8
SLOT_COUNTS_BYTES = 64
COMPARE_ACCUM_BYTES = 4232
MOE_SHARE = 720720
COMPARE_MAX_BATCH = 512

_COMPARE = struct.Struct("<QQQQdddqiiiiqd")
_BY_BATCH_OFFSET = 128
_READ_ATTEMPTS = 1000


def set_mode(word: memoryview, mode: int) -> None:
    """Stores `mode` (0 off, 1 validate, 2 on) in a gate word: one aligned 4-byte store.

    Raises ValueError for any other mode.
    """
    if mode not in (0, 1, 2):
        raise ValueError(f"mode must be 0, 1 or 2, got {mode}")
    word.cast("B").cast("I")[0] = mode


def ask_look(word: memoryview) -> None:
    """Asks for one look at the KV slots, in the next step."""
    halves = word.cast("B").cast("I")
    halves[1] = (halves[1] + 1) & 0xFFFFFFFF


def read_gate(word: memoryview) -> dict[str, Any]:
    """{"mode": the mode asked for, "steps": [gates run in off, validate, on], "ticks"} of a gate word."""
    words = word.cast("B").cast("Q")
    return {"mode": word.cast("B").cast("I")[0], "steps": [words[1], words[2], words[3]], "ticks": words[5]}


def read_slots(counts: memoryview) -> dict[str, int]:
    """{"pairs", "contiguous", "looks"} of slot counts that stand still."""
    words = counts.cast("B").cast("Q")
    return {"pairs": words[1], "contiguous": words[2], "looks": words[3]}


def read_moe(table: memoryview, layers: int, experts: int, ranks: int) -> dict[str, Any]:
    """The copy of a MoE table that stands still: "steps", "tokens", and by layer "experts", "unique", "layer_steps", "peak",
    "idle" and "straggler" (of MOE_SHARE each step)."""
    words = table.cast("B").cast("Q")
    at, parts = 8, {}
    for name, width in (("experts", experts), ("unique", 1), ("layer_steps", 1), ("peak", 1), ("idle", ranks),
                        ("straggler", ranks)):
        parts[name] = [words[at + row * width:at + (row + 1) * width].tolist() for row in range(layers)]
        at += layers * width
    each = {name: [row[0] for row in parts[name]] for name in ("unique", "layer_steps", "peak")}
    return {"steps": words[1], "tokens": words[2]} | parts | each


def read_compare(accum: memoryview) -> dict[str, Any] | None:
    """The fields of a compare accumulator, `compares_by_batch` as {requests: compares}; None if it never stood still.

    Units as in compare.h; requests 0 stands for batches above 512. the `worst_*` are -1 while nothing
    differed.
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
    names = ("sequence", "compares", "mismatches", "skipped", "max_abs", "max_ulp", "sum_mean_ulp", "longest_prefix",
             "worst_layer", "worst_request", "worst_batch", "worst_head", "worst_prefix", "max_mean_ulp")
    result: dict[str, Any] = dict(zip(names, fields))
    if result["max_ulp"] == 0:
        result.update(dict.fromkeys(names[-6:-1], -1))
    counts = struct.unpack_from(f"<{COMPARE_MAX_BATCH + 1}Q", raw, _BY_BATCH_OFFSET)
    result["compares_by_batch"] = {batch: count for batch, count in enumerate(counts) if count}
    return result
