# SPDX-License-Identifier: Apache-2.0
"""What the host counts in the engine's thread."""
from .stats_format import MAX_REASONS


class Counters:
    """Eager verify calls of one layer each; what captured graphs do is counted on the device (graphs.py). One writer."""

    def __init__(self) -> None:
        self.calls_kernel = 0
        self.calls_engine = 0
        self.handed_back = [0] * MAX_REASONS
        self.batches: dict[int, int] = {}  # requests in the call -> calls that either kernel answered

    def answered(self, batch: int, by_kernel: bool) -> None:
        """One call of `batch` requests was served."""
        if by_kernel:
            self.calls_kernel += 1
        else:
            self.calls_engine += 1
        self.batches[batch] = self.batches.get(batch, 0) + 1
