# SPDX-License-Identifier: Apache-2.0
"""Words in host memory through which the host and a captured graph speak (kernel/include/kdtree/gate.h): the host stores
the mode, the graph counts how often it ran. Reading and storing take no CUDA call."""
import ctypes
import sys

_BYTES = 64  # u32 mode, u32 look, u64 steps[3], u32 looked, u32 reserved, u64 ticks, u64 reserved[2]
_STEPS_AT, _TICKS_AT = 8, 40
_MOST = 256


class Word:
    """tensor: uint8 [64]. A word that was never stored says off."""

    def __init__(self, tensor: object):
        self.tensor = tensor
        self._address = tensor.data_ptr()

    def store(self, mode: int) -> None:
        ctypes.c_uint32.from_address(self._address).value = mode

    def ask_look(self) -> None:
        """The next step is to look at its KV slots once."""
        asked = ctypes.c_uint32.from_address(self._address + 4)
        asked.value = (asked.value + 1) & 0xFFFFFFFF

    def steps(self) -> list[int]:
        """Gates run in off, validate, on."""
        return list((ctypes.c_uint64 * 3).from_address(self._address + _STEPS_AT))

    def ticks(self) -> int:
        return ctypes.c_uint64.from_address(self._address + _TICKS_AT).value


class Words:
    """A fixed number of words: graphs hold their addresses for good."""

    def __init__(self) -> None:
        self._made: list[Word] = []
        self._memory = None

    def take(self, on_gpu: bool) -> Word | None:
        """A new word, zero; None when none is left. Not inside a capture."""
        torch = sys.modules["torch"]
        if self._memory is None:
            self._memory = torch.zeros(_MOST, _BYTES, dtype=torch.uint8, pin_memory=on_gpu)
        if len(self._made) == _MOST:
            return None
        self._made.append(Word(self._memory[len(self._made)]))
        return self._made[-1]
