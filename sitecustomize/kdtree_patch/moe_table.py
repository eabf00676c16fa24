# SPDX-License-Identifier: Apache-2.0
"""The router's counters on the engine's device (kernel/include/kdtree/moe.h), and the copy that a thread reads."""
import struct
from array import array

from . import stats_format as f
from .pinned import Pinned
from .stats import Section

LAYERS = 256  # rows of a table: layer ids from there on are not counted
_HEAD = struct.Struct("<QQQ")  # sequence, steps, tokens
_HEAD_BYTES = 64


def near(rows: int) -> int:
    """`rows`, above 256 to the nearest sixteenth of a power of two: so that few different ones are kept."""
    step = max(1, 1 << max(0, rows.bit_length() - 5)) if rows > 256 else 1
    return (rows + step // 2) // step * step


class MoeTable:
    """experts: logical ones a layer; ranks: expert ranks, 0 = not known where experts are.

    One thread counts (the engine's, on one stream), one reads. The methods raise what the ops raise."""

    def __init__(self, ops: object, torch: object, like: object, experts: int, ranks: int):
        """like: a tensor on the device to count on. Not inside a capture."""
        self.experts, self.ranks = experts, ranks
        self.first, self.last = LAYERS, -1  # layers counted so far
        self._passes: dict[int, int] = {}  # by rows
        self._ops, self._shape = ops, (LAYERS, experts, ranks)
        size = ops.moe_table_bytes(*self._shape, like)
        self._table = torch.zeros(size, dtype=torch.uint8, device=like.device)
        self._copy = Pinned(_HEAD_BYTES + 8 * LAYERS * (experts + 3 + 2 * ranks))
        self._copy.make(like.device.type == "cuda")

    def begin(self, rows: int) -> None:
        """A pass begins whose first `rows` tokens count."""
        size = near(rows)
        self._passes[size] = self._passes.get(size, 0) + 1
        self._ops.moe_begin(self._table, *self._shape, rows)

    def count(self, layer: int, ids: object) -> None:
        """One layer's choice; ids: [tokens, k], logical."""
        self.first, self.last = min(self.first, layer), max(self.last, layer)
        self._ops.moe_count(self._table, *self._shape, layer, ids)

    def end(self) -> None:
        """The pass is over."""
        if self.last >= 0:
            self._ops.moe_end(self._table, *self._shape, self._copy.tensor, self.first, self.last)

    def _pass_rows(self) -> Section:
        passes = sorted(self._passes.copy().items())
        room = 1 << max(4, (len(passes) - 1).bit_length())
        passes += [(0, 0)] * (room - len(passes))
        return f.SECTION_PASS_ROWS, room, 2, array("Q", [number for row in passes for number in row])

    def read(self, placed: bool) -> tuple[dict[str, object], list[Section]]:
        """Stats fields and sections; both empty until one whole pass was counted."""
        first, last, raw = self.first, self.last, self._copy.read()
        if raw is None or last < 0:
            return {}, []
        _, steps, tokens = _HEAD.unpack_from(raw)
        if not steps:
            return {}, []
        rows, at, sections = last - first + 1, _HEAD_BYTES, []
        for kind, cols in ((f.SECTION_EXPERT_TOKENS, self.experts), (f.SECTION_UNIQUE_EXPERTS, 1),
                           (f.SECTION_LAYER_STEPS, 1), (f.SECTION_PEAKS, 1), (f.SECTION_IDLE_RANKS, self.ranks),
                           (f.SECTION_STRAGGLERS, self.ranks)):
            if cols and (kind <= f.SECTION_LAYER_STEPS or self.ranks and placed):
                start = at + 8 * cols * first
                sections.append((kind, rows, cols, array("Q", raw[start:start + 8 * cols * rows])))
            at += 8 * cols * LAYERS
        sections.append(self._pass_rows())
        return {"moe_layers": rows, "moe_experts": self.experts, "moe_first_layer": first, "moe_steps": steps,
                "moe_tokens": tokens}, sections
