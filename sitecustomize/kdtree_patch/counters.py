# SPDX-License-Identifier: Apache-2.0
"""What the host counts in the engine's thread."""
import time

from .stats_format import MAX_REASONS

_SLOTS_EVERY_S = 1.0


class Counters:
    """Verify calls of one layer each; what captured graphs do is counted by their gate. One writer."""

    def __init__(self) -> None:
        self.calls_kernel = 0
        self.calls_engine = 0
        self.handed_back = [0] * MAX_REASONS
        self.kv_pairs = 0
        self.kv_contiguous_pairs = 0
        self._slots_due = 0.0

    def see_slots(self, kv_indptr: object, kv_indices: object) -> None:
        """Looks once a second at how many neighbouring KV slots of a request follow each other; on the CPU alone:
        reading a GPU's indices would make the host wait."""
        now = time.monotonic()
        if kv_indices.device.type != "cpu" or now < self._slots_due:
            return
        self._slots_due = now + _SLOTS_EVERY_S
        bounds = kv_indptr.tolist()
        for start, end in zip(bounds, bounds[1:]):
            slots = kv_indices[start:end].tolist()
            self.kv_pairs += max(len(slots) - 1, 0)
            self.kv_contiguous_pairs += sum(b - a == 1 for a, b in zip(slots, slots[1:]))
