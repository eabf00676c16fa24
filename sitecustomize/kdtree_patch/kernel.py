# SPDX-License-Identifier: Apache-2.0
"""Loads libkdtree_torch.so and calls torch.ops.kdtree; nothing of torch is touched before Kernel() is made.

`bound` below is one call's arguments of the engine's extend_attention_fwd by name, found eligible."""
import sys

from . import eligible
from .compare import Accumulator, SlotCounts
from .env import Settings
from .release import KernelError, check_files, check_modules, digest_of

_FP8_TOLERANCE = 16  # an ULP of e4m3 in ULP of bf16: 3 bits of mantissa against 7


class Kernel:
    """The loaded op of the release that `manifest` is of. library_sha256: what runs; proven_kv: which types of KV pool,
    beside q's own, the selftest of this release has proven on this host; accumulator, slot_counts: what was found.

    Errors: KernelError from the constructor. The methods raise what the op raises."""

    def __init__(self, settings: Settings, manifest: dict[str, object]):
        library, torch = settings.library, sys.modules["torch"]
        self.proven_kv = frozenset(str(kind) for kind in manifest.get("proven_kv") or ())
        self.library_sha256 = digest_of(library)
        check_files(manifest, library)
        try:
            import kdtree_kernel

            kdtree_kernel.load(library)
        except Exception as error:
            raise KernelError(f"kernel library {library} can't be loaded: {error}") from error
        check_modules(manifest, library)
        self._torch = torch
        self.ops = torch.ops.kdtree
        self._nsplit = settings.nsplit or 0
        self._max_ulp, self._mean_ulp = settings.max_ulp, settings.mean_ulp
        self._needed: dict[tuple[object, ...], int] = {}
        self._buffers: dict[tuple[object, ...], list[object]] = {}
        self.accumulator = Accumulator()
        self.slot_counts = SlotCounts()

    def _buffer(self, size: int, dtype: object, device: object, may_make: bool = True, use: str = "any") -> object | None:
        """A flat tensor of at least `size` elements, the same for all calls of one use (they run on one stream), zero at
        first. Smaller ones that a graph may hold live on. None if there is none and none may be made."""
        made = self._buffers.setdefault((use, dtype, device), [])
        for buffer in made:
            if buffer.numel() >= size:
                return buffer
        if not may_make:
            return None
        # A power of two: sizes that grow one by one cost at most twice the largest.
        made.append(self._torch.zeros(1 << max(size - 1, 0).bit_length(), dtype=dtype, device=device))
        return made[-1]

    def _workspace(self, bound: dict[str, object], may_make: bool = True) -> object | None:
        """uint8, for verify() of this call."""
        q = bound["q_extend"]
        key = bound["qo_indptr"].shape[0] - 1, bound["max_len_extend"], q.shape[1], q.device
        if key not in self._needed:
            self._needed[key] = self.ops.verify_attn_workspace_bytes(*key[:3], q, self._nsplit)
        return self._buffer(self._needed[key], self._torch.uint8, q.device, may_make)

    def _compare_workspace(self, tokens: object, may_make: bool = True) -> object | None:
        """uint8, for compare() of outputs like this one; compare() alone writes it, as compare.h asks."""
        key = "compare", tokens.shape[0], tokens.device
        if key not in self._needed:
            self._needed[key] = self.ops.compare_workspace_bytes(tokens.shape[0], tokens)
        return self._buffer(self._needed[key], self._torch.uint8, tokens.device, may_make, "compare")

    def reserve(self, bound: dict[str, object], capturing: bool) -> bool:
        """Makes what a call needs; inside a capture nothing is made, and False says that something is missing."""
        q, out = bound["q_extend"], bound["o_extend"]
        if capturing:
            return (self.accumulator.tensor is not None and self.slot_counts.tensor is not None
                    and self._buffer(out.numel(), out.dtype, out.device, False) is not None
                    and self._workspace(bound, False) is not None and self._compare_workspace(out, False) is not None)
        self._workspace(bound)
        self._compare_workspace(out)
        self.scratch(out)
        self.accumulator.make(q.device.type == "cuda")
        self.slot_counts.make(q.device.type == "cuda")
        return True

    def scratch(self, out: object) -> object:
        """A tensor of `out`'s shape, contiguous, the same memory for each layer and each batch."""
        return self._buffer(out.numel(), out.dtype, out.device)[:out.numel()].view(out.shape)

    def verify(self, bound: dict[str, object], out: object, scratch: object = None, enable: object = None) -> None:
        """Our kernel's answer into `out`, or what `enable` (int32 [1] on the device) says."""
        q, scale = bound["q_extend"], bound.get("sm_scale")
        scales = dict(zip(("k_scale", "v_scale"), eligible.scales(bound))) if eligible.kv_type(bound) else {}
        self.ops.verify_attn(
            q, bound["k_extend"], out, bound["k_buffer"], bound["qo_indptr"], bound["kv_indptr"], bound["kv_indices"],
            bound["custom_mask"], bound["mask_indptr"], None, self._workspace(bound), bound["max_len_extend"],
            float(scale) if scale else q.shape[2] ** -0.5, enable, scratch, self._nsplit, **scales)

    def compare(self, ours: object, engines: object, bound: dict[str, object], layer: int,
                enable: object = None) -> None:
        """Adds |ours - engines| of one layer to the accumulator. Over an fp8 pool the tolerances are wider: there the
        engine's kernel rounds its weights to three bits of mantissa, and ours does not."""
        accumulator = self.accumulator.make(bound["q_extend"].device.type == "cuda")
        wider = _FP8_TOLERANCE if eligible.kv_type(bound) else 1
        self.ops.compare(ours, engines, bound["kv_indptr"], layer, accumulator, self._compare_workspace(engines), enable,
                         wider * self._max_ulp, wider * self._mean_ulp)

    def gate(self, word: object, bound: dict[str, object], qo_indptr: object, kv_indptr: object, flags: object) -> None:
        """Writes this step's gated index arrays and flags; see kernel/include/kdtree/gate.h."""
        self.ops.gate(word, bound["qo_indptr"], bound["kv_indptr"], qo_indptr, kv_indptr, flags)

    def tick(self, word: object, like: object) -> None:
        """Adds one to the word's ticks when it runs."""
        self.ops.tick(word, like)

    def look(self, bound: dict[str, object], enable: object = None) -> None:
        """How contiguous the batch's KV slots are, into slot_counts."""
        counts = self.slot_counts.make(bound["q_extend"].device.type == "cuda")
        self.ops.slots(bound["kv_indptr"], bound["kv_indices"], counts, enable)
