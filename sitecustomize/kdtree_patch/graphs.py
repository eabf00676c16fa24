# SPDX-License-Identifier: Apache-2.0
"""The verify path under CUDA graphs: both kernels are captured, a gate that runs once a step decides which one works.

SGLang calls each batch size eagerly (warm-up, same buffers) and then captures it. Everything that needs an allocation is
made in the warm-up; a capture that finds something missing hands back. While SGLang captures, the mode words say off, so
warm-ups are answered by the engine and counted apart. The side thread stores the mode with plain stores, without CUDA.
"""
import ctypes
import sys
from collections.abc import Callable

from . import stats_format as f

_WORD_BYTES = 64  # struct kdtree_gate_word: u32 mode, u32 reserved, u64 steps[3], u64 reserved[4]
_MAX_WORDS = 64
_CAPTURE_FLAGS = ("sglang.srt.model_executor.runner_utils.capture_mode",
                  "sglang.srt.model_executor.cuda_graph_runner")


def engine_captures() -> bool:
    """True while SGLang is between the start of its first warm-up and the end of its last capture."""
    for name in _CAPTURE_FLAGS:
        asked = getattr(sys.modules.get(name), "get_is_capture_mode", None)
        if asked is not None:
            return bool(asked())
    return False


class _Entry:
    """What the graphs of one (requests, draft tokens, heads) share. warmups: gates run eagerly, all in mode off;
    layers: verify calls in the graph, 0 = not captured (yet); seen: those of the capture that runs; broken: our
    kernel failed while it was captured."""

    def __init__(self, word: object, address: int, qo_indptr: object, kv_indptr: object, flags: object):
        self.word, self.address = word, address
        self.qo_indptr, self.kv_indptr, self.flags = qo_indptr, kv_indptr, flags
        self.last_layer = sys.maxsize
        self.gated = False
        self.warmups = 0
        self.layers = 0
        self.seen = 0
        self.broken = False

    def store(self, mode: int) -> None:
        ctypes.c_uint32.from_address(self.address).value = mode

    def steps(self) -> list[int]:
        """Gates run in each mode since the start, warm-ups taken out."""
        counted = list((ctypes.c_uint64 * 3).from_address(self.address + 8))
        counted[f.OFF] = max(0, counted[f.OFF] - self.warmups)
        return counted


class Graphs:
    """The captured graphs of this process. set_mode, refresh and add_counts are called by the side thread as well."""

    def __init__(self, patch: object, kernel: object):
        self._patch, self._kernel = patch, kernel
        self._entries: dict[tuple[object, ...], _Entry] = {}
        self._words = None
        self._mode = f.OFF

    def _capturing(self, q: object) -> bool:
        """A CUDA graph is recording on the current stream, right now."""
        return bool(sys.modules["torch"].cuda.is_current_stream_capturing())

    def wanted(self, q: object) -> bool:
        """This call belongs to a graph: it is being captured, or warms up for that."""
        return q.device.type == "cuda" and (engine_captures() or self._capturing(q))

    def set_mode(self, mode: int) -> None:
        self._mode = mode
        self.refresh()

    def refresh(self) -> None:
        """Stores the mode in force into every word; off while the engine captures."""
        mode = f.OFF if engine_captures() else self._mode
        for entry in list(self._entries.values()):
            entry.store(f.OFF if entry.broken else mode)

    def add_counts(self, values: dict[str, object]) -> None:
        """Adds what replays did to calls_kernel and calls_engine."""
        for entry in list(self._entries.values()):
            steps = entry.steps()
            values["calls_kernel"] += steps[f.ON] * entry.layers
            values["calls_engine"] += (steps[f.OFF] + steps[f.VALIDATE]) * entry.layers

    def capture(self, real: Callable, args: tuple, kwargs: dict[str, object], bound: dict[str, object],
                layer: int) -> object:
        """One layer's call, in a warm-up or a capture. Returns what the engine's kernel returns."""
        patch, q = self._patch, bound["q_extend"]
        capturing = self._capturing(q)
        try:
            entry = self._entry(bound, capturing)
            ready = entry is not None and self._kernel.reserve(bound, capturing)
            gated = ready and self._step(entry, bound, layer, capturing)
        except Exception as error:
            patch.kernel_failed(error)
            return real(*args, **kwargs)
        if not gated:
            patch.hand_back(f.BACK_ERROR if ready else f.BACK_WORKSPACE)
            return real(*args, **kwargs)
        args, kwargs = _gated(bound, entry), {}
        result = real(*args, **kwargs)
        try:
            out, scratch = bound["o_extend"], self._kernel.scratch(bound["o_extend"])
            self._kernel.verify(bound, out, scratch, entry.flags[0:1])
            self._kernel.compare(scratch, out, bound, layer, entry.flags[1:2])
        except Exception as error:
            entry.broken = True  # its graphs may lack our kernel: they stay on the engine's for good
            entry.store(f.OFF)
            patch.kernel_failed(error)
            return result
        if capturing:
            entry.seen += 1
            entry.layers = max(entry.layers, entry.seen)  # counts never fall while a graph is captured again
        return result

    def _entry(self, bound: dict[str, object], capturing: bool) -> _Entry | None:
        torch, qo, kv = sys.modules["torch"], bound["qo_indptr"], bound["kv_indptr"]
        key = (qo.shape[0] - 1, bound["max_len_extend"], bound["q_extend"].shape[1], qo.dtype, qo.device)
        entry = self._entries.get(key)
        if entry is not None or capturing:
            return entry
        if self._words is None:
            self._words = torch.zeros(_MAX_WORDS, _WORD_BYTES, dtype=torch.uint8, pin_memory=qo.device.type == "cuda")
        if len(self._entries) == _MAX_WORDS:
            return None
        word = self._words[len(self._entries)]
        entry = _Entry(word, word.data_ptr(), torch.zeros_like(qo), torch.zeros_like(kv),
                       torch.zeros(4, dtype=torch.int32, device=qo.device))
        self._entries[key] = entry
        return entry

    def _step(self, entry: _Entry, bound: dict[str, object], layer: int, capturing: bool) -> bool:
        """Before the first layer of a step: the gate. False: this step's gate failed, so nothing filled its index arrays.
        Raises what the gate raises; the entry's graphs then stay on the engine's kernel for good."""
        first = layer <= entry.last_layer
        entry.last_layer = layer
        if not first:
            return entry.gated
        entry.gated = False
        if capturing:
            entry.seen = 0
            self._patch.see_graphs(True)
        try:
            self._kernel.gate(entry.word, bound, entry.qo_indptr, entry.kv_indptr, entry.flags)
        except Exception:
            entry.broken = True
            entry.store(f.OFF)
            raise
        entry.gated = True
        entry.warmups += 0 if capturing else 1
        return True


def _gated(bound: dict[str, object], entry: _Entry) -> tuple:
    """The engine's arguments with the gate's index arrays, positional in the signature's order."""
    replaced = {**bound, "qo_indptr": entry.qo_indptr, "kv_indptr": entry.kv_indptr}
    return tuple(replaced.values())
