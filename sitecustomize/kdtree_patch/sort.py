# SPDX-License-Identifier: Apache-2.0
"""Tier 0 of KV locality: the engine's own sorted free list (need_sort), switched on and read back."""
import functools
import inspect
from collections.abc import Callable

from .patch import PATCH, Patch

UNKNOWN, OFF, CONFIRMED, IMPOSSIBLE = -1, 0, 1, 2


def wrap_init(original: Callable, patch: Patch) -> Callable:
    """__init__ of TokenToKVPoolAllocator with need_sort=True where KDTREE_DEFRAG_SORT asks for it."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def init(self, *args, **kwargs):  # noqa: ANN001
        wanted = False
        try:
            wanted = patch.ready() and patch.settings.sort
            if wanted:
                bound = signature.bind(self, *args, **kwargs)
                if "need_sort" in bound.arguments:
                    bound.arguments["need_sort"] = True
                    args, kwargs = bound.args[1:], bound.kwargs
        except Exception as error:
            patch.failed(error)
        result = original(self, *args, **kwargs)
        read = getattr(self, "need_sort", None)
        if read is True and hasattr(self, "release_pages"):
            patch.sort_state = CONFIRMED
        elif wanted:
            patch.sort_state = IMPOSSIBLE
        elif patch.ready():
            patch.sort_state = OFF if read is False else UNKNOWN
        return result

    init.__kdtree__ = True
    return init


def patch_allocator(module: object) -> None:
    """Wraps the class where it is defined, once; a module that only re-exports it is left alone."""
    cls = module.__dict__.get("TokenToKVPoolAllocator")
    if cls is None or cls.__module__ != module.__name__ or getattr(cls.__dict__.get("__init__"), "__kdtree__", False):
        return
    cls.__init__ = wrap_init(cls.__dict__["__init__"], PATCH)
