# SPDX-License-Identifier: Apache-2.0
"""Loads the stand-in library."""
import torch

_loaded: str | None = None


def loaded() -> str | None:
    """The path of the library in use, or None."""
    return _loaded


def load(path: str) -> None:
    """As kdtree's own: idempotent for one path, OSError for a file that can't be loaded, RuntimeError for a second."""
    global _loaded
    if _loaded == path:
        return
    if _loaded is not None:
        raise RuntimeError(f"kdtree_kernel: {_loaded} is loaded already, can't load {path} too")
    torch.ops.load_library(path)
    _loaded = path
