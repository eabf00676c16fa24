# SPDX-License-Identifier: Apache-2.0
"""Calls back right after the import of named modules, without importing them."""
import sys

# Runs at the start of every Python process: nothing else is imported here, typing included. A callback is a
# function of the imported module.


class _Loader:
    """The module's own loader, with a call after exec_module. Everything else is the own loader's."""

    def __init__(self, loader: object, callback: object):
        self._loader = loader
        self._callback = callback

    def __getattr__(self, name: str) -> object:
        return getattr(self._loader, name)

    def create_module(self, spec: object) -> object:
        return self._loader.create_module(spec)

    def exec_module(self, module: object) -> None:
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        try:
            self._callback(module)
        except Exception:  # the engine's import must not fail for us; installer.py records its own failures
            pass


class _Finder:
    """A sys.meta_path finder that only knows the watched modules, each until it was imported once."""

    def __init__(self) -> None:
        self.waiting: dict[str, object] = {}

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        if name not in self.waiting:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = None if finder is self or find is None else find(name, path, target)
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(spec.loader, lambda module: self._imported(name, module))
                return spec
        return None

    def _imported(self, name: str, module: object) -> None:
        callback = self.waiting.pop(name, None)
        if callback is not None:
            callback(module)


_finder = _Finder()


def watch(names: tuple[str, ...], callback: object) -> None:
    """Has `callback(module)` called after each named module's first import; names already imported or already watched
    are left alone. Idempotent."""
    for name in names:
        if name not in sys.modules:
            _finder.waiting.setdefault(name, callback)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
