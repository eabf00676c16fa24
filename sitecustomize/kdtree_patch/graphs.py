# SPDX-License-Identifier: Apache-2.0
"""The verify path under CUDA graphs: both kernels are captured, a gate that runs once a step decides which one works.

SGLang calls each batch size eagerly (warm-up, same buffers) and then captures it. Everything that needs an allocation is
made in the warm-up; a capture that finds something missing hands back. A warm-up obeys a word that always says off, so the
engine answers it and nothing is counted. What replays do is counted on the device, by the gate, or by a tick where the
capture handed back. The side thread stores modes and reads counts with plain loads and stores, without CUDA.
"""
import sys
from typing import NamedTuple

from . import phase
from . import stats_format as f
from .words import Word, Words

_FLAGS = 8  # KDTREE_GATE_FLAGS


class Site(NamedTuple):
    """Where a verify call comes from."""

    backend: object
    q: object
    layer: int


class _Entry:
    """What the graphs of one (requests, draft tokens, heads) share. layers: verify calls in the graph, 0 = not captured
    (yet); seen: those of the capture that runs; broken: our kernel failed while it was captured, and from then on its
    replays are the engine's, handed back for an error."""

    def __init__(self, batch: int, word: Word, qo_indptr: object, kv_indptr: object, flags: object):
        self.batch, self.word = batch, word
        self.qo_indptr, self.kv_indptr, self.flags = qo_indptr, kv_indptr, flags
        self.last_layer = sys.maxsize
        self.gated = False
        self.layers = 0
        self.seen = 0
        self.broken = False
        self._before = [0, 0, 0]  # steps until it broke

    def break_(self) -> None:
        if not self.broken:
            self._before, self.broken = self.word.steps(), True
        self.word.store(f.OFF)

    def calls(self) -> tuple[int, int, int]:
        """Calls that replays made: answered by our kernel, by the engine's, handed back for an error."""
        steps = self.word.steps()
        good = self._before if self.broken else steps
        wrong = (sum(steps) - sum(good)) * max(self.layers, self.seen)
        return good[f.ON] * self.layers, (good[f.OFF] + good[f.VALIDATE]) * self.layers, wrong


class _Tally:
    """What one graph hands back: calls by reason, times how often it ran."""

    def __init__(self, word: Word):
        self.word = word
        self.last_layer = sys.maxsize
        self.seen: dict[int, int] = {}
        self.layers: dict[int, int] = {}

    def add(self, layer: int, reason: int) -> bool:
        """True for the first call of a capture, which is where the tick belongs."""
        first = layer <= self.last_layer
        self.last_layer = layer
        if first:
            self.seen = {}
        self.seen[reason] = self.seen.get(reason, 0) + 1
        self.layers[reason] = max(self.layers.get(reason, 0), self.seen[reason])  # counts never fall
        return first


class Graphs:
    """The captured graphs of this process. set_mode, refresh, ask_look and add_counts are the side thread's as well."""

    def __init__(self, patch: object, kernel: object):
        self._patch, self._kernel = patch, kernel
        self._entries: dict[tuple[object, ...], _Entry] = {}
        self._tallies: dict[tuple[object, ...], _Tally] = {}
        self._words = Words()
        self._idle: Word | None = None  # what warm-ups obey: off for ever
        self._mode = f.OFF

    def wanted(self, q: object) -> bool:
        """This call belongs to a graph: it is being captured, or warms up for that."""
        return q.device.type == "cuda" and (phase.engine_captures() or phase.is_recording(q))

    # the side thread

    def set_mode(self, mode: int) -> None:
        self._mode = mode
        self.refresh()

    def refresh(self) -> None:
        """Stores the mode in force into every word."""
        for entry in list(self._entries.values()):
            entry.word.store(f.OFF if entry.broken else self._mode)

    def ask_look(self) -> None:
        """Each graph looks at its KV slots once, when it is replayed next."""
        for entry in list(self._entries.values()):
            entry.word.ask_look()

    def add_counts(self, values: dict[str, object], batches: dict[int, int]) -> None:
        """Adds what replays did: to calls_kernel, calls_engine and handed_back, and calls by batch size."""
        for entry in list(self._entries.values()):
            kernel, engine, wrong = entry.calls()
            values["calls_kernel"] += kernel
            values["calls_engine"] += engine
            values["handed_back"][f.BACK_ERROR] += wrong
            batches[entry.batch] = batches.get(entry.batch, 0) + kernel + engine
        for tally in list(self._tallies.values()):
            ticks = tally.word.ticks()
            for reason, layers in list(tally.layers.items()):
                values["handed_back"][reason] += ticks * layers

    # warm-up and capture

    def hand_back(self, site: Site, reason: int) -> None:
        """A call in a warm-up or a capture that goes to the engine's kernel: each replay is to count it. Never raises."""
        try:
            recording = phase.is_recording(site.q)
            tally = self._tally(site, recording)
            if tally is not None and recording and tally.add(site.layer, reason):
                self._kernel.tick(tally.word.tensor, site.q)
        except Exception as error:
            self._patch.note_error("patch", error)

    def _tally(self, site: Site, recording: bool) -> _Tally | None:
        """The same one for each call from there. None if there is none and, inside a capture, none may be made."""
        key = id(site.backend), tuple(site.q.shape), site.q.dtype
        if key not in self._tallies and not recording:
            word = self._words.take(site.q.device.type == "cuda")
            if word is None:
                return None
            self._tallies[key] = _Tally(word)
        return self._tallies.get(key)

    def capture(self, call: object, bound: dict[str, object], site: Site) -> object:
        """One layer's call, in a warm-up or a capture. call: as verify._Call. Returns what the engine's kernel returns."""
        recording = phase.is_recording(site.q)
        reason = f.BACK_ERROR
        try:
            entry = self._entry(bound, recording)
            self._tally(site, recording)  # should the capture fail
            ready = entry is not None and self._kernel.reserve(bound, recording)
            reason = f.BACK_ERROR if ready else f.BACK_WORKSPACE
            gated = ready and not entry.broken and self._step(entry, bound, site.layer, recording)
        except Exception as error:
            self._patch.capture_failed(error, f"batch of {bound['qo_indptr'].shape[0] - 1}, layer {site.layer}")
            gated = False
        if not gated:
            self.hand_back(site, reason)
            return call.real()
        result = call.real(qo_indptr=entry.qo_indptr, kv_indptr=entry.kv_indptr)
        try:
            out, scratch = bound["o_extend"], self._kernel.scratch(bound["o_extend"])
            self._kernel.verify(bound, out, scratch, entry.flags[0:1])
            self._kernel.compare(scratch, out, bound, site.layer, entry.flags[1:2])
            self._patch.kernel_answered()
        except Exception as error:  # its graphs may lack our kernel: they stay on the engine's for good
            entry.break_()
            self._patch.capture_failed(error, f"batch of {entry.batch}, layer {site.layer}")
        if recording:
            entry.seen += 1
            if not entry.broken:
                entry.layers = max(entry.layers, entry.seen)  # counts never fall while a graph is captured again
        return result

    def _entry(self, bound: dict[str, object], recording: bool) -> _Entry | None:
        torch, qo, kv = sys.modules["torch"], bound["qo_indptr"], bound["kv_indptr"]
        batch, on_gpu = qo.shape[0] - 1, qo.device.type == "cuda"
        key = (batch, bound["max_len_extend"], bound["q_extend"].shape[1], qo.dtype, qo.device)
        entry = self._entries.get(key)
        if entry is not None or recording:
            return entry
        self._idle = self._idle or self._words.take(on_gpu)
        word = self._words.take(on_gpu)
        if word is None:
            return None
        entry = _Entry(batch, word, torch.zeros_like(qo), torch.zeros_like(kv),
                       torch.zeros(_FLAGS, dtype=torch.int32, device=qo.device))
        self._entries[key] = entry
        word.store(self._mode)
        return entry

    def _step(self, entry: _Entry, bound: dict[str, object], layer: int, recording: bool) -> bool:
        """Before the first layer of a step: the gate. False: this step's gate failed, so nothing filled its index arrays.
        Raises what the gate raises; the entry's graphs then stay on the engine's kernel for good."""
        first = layer <= entry.last_layer
        entry.last_layer = layer
        if not first:
            return entry.gated
        entry.gated, entry.seen = False, 0
        if recording:
            self._patch.see_graphs(True)
        word = entry.word if recording else self._idle
        try:
            self._kernel.gate(word.tensor, bound, entry.qo_indptr, entry.kv_indptr, entry.flags)
        except Exception:
            entry.break_()
            raise
        self._patch.look(bound, entry.flags[4:5])
        entry.gated = True
        return True
