# SPDX-License-Identifier: Apache-2.0
"""Loads libkdtree_torch.so and calls torch.ops.kdtree; nothing of torch is touched before Kernel() is made.

`bound` below is one call's arguments of the engine's extend_attention_fwd by name, found eligible."""
import hashlib
import json
import os
import sys

from .compare import Accumulator
from .env import Settings


class KernelError(Exception):
    """The kernel can't be used in this process; the text says why."""


def read_manifest(library: str) -> dict[str, object]:
    """manifest.json two folders above the library. Errors: KernelError."""
    path = os.path.join(os.path.dirname(os.path.dirname(library)), "manifest.json")
    try:
        with open(path, encoding="utf-8") as file:
            manifest = json.load(file)
    except (OSError, ValueError) as error:
        raise KernelError(f"release manifest {path}: {error}") from error
    if not isinstance(manifest, dict) or not isinstance(manifest.get("release"), str):
        raise KernelError(f"release manifest {path}: names no release")
    return manifest


def _public(version: str) -> str:
    return version.split("+", 1)[0]


class Kernel:
    """The loaded op. release_id, torch_version, library_sha256: what runs; accumulator: what compare found.

    Errors: KernelError from the constructor. verify() and compare() raise what the op raises."""

    def __init__(self, settings: Settings):
        library = settings.library
        manifest = read_manifest(library)
        self.release_id: str = manifest["release"]
        torch = sys.modules.get("torch")
        if torch is None:
            raise KernelError("torch is not loaded in this process")
        self.torch_version = str(torch.__version__)
        built_for = str(manifest.get("torch", ""))
        if _public(built_for) != _public(self.torch_version):
            raise KernelError(f"built for torch {built_for or 'unknown'}, the engine runs {self.torch_version}: "
                              "deploy again")
        self.library_sha256 = self._digest(library)
        expected = (manifest.get("files") or {}).get("lib/" + os.path.basename(library), self.library_sha256)
        if expected != self.library_sha256:
            raise KernelError(f"{library} is not the file that its manifest lists")
        try:
            import kdtree_kernel

            kdtree_kernel.load(library)
        except Exception as error:
            raise KernelError(f"kernel library {library} can't be loaded: {error}") from error
        self._torch = torch
        self.ops = torch.ops.kdtree
        self._compare_bytes = getattr(self.ops, "compare_workspace_bytes", lambda rows, like: 0)
        self._nsplit = settings.nsplit or 0
        self._max_ulp, self._mean_abs = settings.max_ulp, settings.mean_abs
        self._needed: dict[tuple[object, ...], int] = {}
        self._workspaces: dict[object, list[object]] = {}
        self._scratch: dict[tuple[object, ...], object] = {}
        self.accumulator = Accumulator(torch)

    @staticmethod
    def _digest(library: str) -> str:
        try:
            with open(library, "rb") as file:
                return hashlib.sha256(file.read()).hexdigest()
        except OSError as error:
            raise KernelError(f"kernel library {library}: {error.strerror}") from error

    def _workspace(self, size: int, device: object, may_make: bool = True) -> object | None:
        """uint8 of at least `size` bytes on `device`, shared by all calls (they run on one stream). Smaller ones that a
        graph may hold live on. None if there is none and none may be made."""
        made = self._workspaces.setdefault(device, [])
        for workspace in made:
            if workspace.numel() >= size:
                return workspace
        if not may_make:
            return None
        # A power of two: batches that grow one by one cost at most twice the largest.
        made.append(self._torch.empty(1 << max(size - 1, 0).bit_length(), dtype=self._torch.uint8, device=device))
        return made[-1]

    def _bytes(self, bound: dict[str, object]) -> int:
        """Workspace that verify() and compare() need for this call."""
        q = bound["q_extend"]
        key = bound["qo_indptr"].shape[0] - 1, bound["max_len_extend"], q.shape[1], q.device
        if key not in self._needed:
            attention = self.ops.verify_attn_workspace_bytes(*key[:3], q, self._nsplit)
            self._needed[key] = max(attention, self._compare_bytes(q.shape[0], q))
        return self._needed[key]

    def reserve(self, bound: dict[str, object], capturing: bool) -> bool:
        """Makes what a call needs; inside a capture nothing is made, and False says that something is missing."""
        q, out = bound["q_extend"], bound["o_extend"]
        if capturing:
            return (self.accumulator.tensor is not None and self._scratch_key(out) in self._scratch
                    and self._workspace(self._bytes(bound), q.device, False) is not None)
        self._workspace(self._bytes(bound), q.device)
        self.scratch(out)
        self.accumulator.make(q.device.type == "cuda")
        return True

    @staticmethod
    def _scratch_key(out: object) -> tuple[object, ...]:
        return tuple(out.shape), out.dtype, out.device

    def scratch(self, out: object) -> object:
        """A tensor like `out`, contiguous, the same one for each layer."""
        key = self._scratch_key(out)
        if key not in self._scratch:
            self._scratch[key] = self._torch.empty(out.shape, dtype=out.dtype, device=out.device)
        return self._scratch[key]

    def verify(self, bound: dict[str, object], out: object, scratch: object = None, enable: object = None) -> None:
        """Our kernel's answer into `out`, or what `enable` (int32 [1] on the device) says. Raises what the op raises."""
        q, scale = bound["q_extend"], bound.get("sm_scale")
        self.ops.verify_attn(
            q, bound["k_extend"], out, bound["k_buffer"], bound["qo_indptr"], bound["kv_indptr"], bound["kv_indices"],
            bound["custom_mask"], bound["mask_indptr"], None, self._workspace(self._bytes(bound), q.device),
            bound["max_len_extend"], float(scale) if scale else q.shape[2] ** -0.5, enable, scratch, self._nsplit)

    def compare(self, ours: object, engines: object, bound: dict[str, object], layer: int,
                enable: object = None) -> None:
        """Adds |ours - engines| of one layer to the accumulator."""
        q = bound["q_extend"]
        accumulator = self.accumulator.make(q.device.type == "cuda")
        self.ops.compare(ours, engines, bound["kv_indptr"], layer, accumulator,
                         self._workspace(self._bytes(bound), q.device), enable, self._max_ulp, self._mean_abs)

    def gate(self, word: object, bound: dict[str, object], qo_indptr: object, kv_indptr: object, flags: object) -> None:
        """Writes this step's gated index arrays and flags; see kernel/include/kdtree/gate.h."""
        self.ops.gate(word, bound["qo_indptr"], bound["kv_indptr"], qo_indptr, kv_indptr, flags)
