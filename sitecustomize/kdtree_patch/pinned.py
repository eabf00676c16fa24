# SPDX-License-Identifier: Apache-2.0
"""Host memory that the GPU writes and a thread reads without any CUDA call, guarded by a sequence number."""
import ctypes
import sys

_READS = 5


class Pinned:
    """`size` bytes, zero at first; the first eight are a sequence number, odd while the rest changes.

    Concurrency: one maker (the engine's thread), one reader."""

    def __init__(self, size: int):
        self.size = size
        self.tensor = None  # uint8 [size]
        self._last: bytes | None = None

    def make(self, on_gpu: bool) -> object:
        """The tensor, made at the first call. Not inside a capture."""
        if self.tensor is None:
            self.tensor = sys.modules["torch"].zeros(self.size, dtype=sys.modules["torch"].uint8, pin_memory=on_gpu)
        return self.tensor

    def read(self) -> bytes | None:
        """A consistent copy; the last one where all reads met a change, None before the first."""
        if self.tensor is None:
            return None
        address = self.tensor.data_ptr()
        for _ in range(_READS):
            before = ctypes.string_at(address, 8)
            raw = ctypes.string_at(address, self.size)
            if before[0] % 2 == 0 and before == raw[:8] == ctypes.string_at(address, 8):
                self._last = raw
                break
        return self._last
