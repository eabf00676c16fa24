# SPDX-License-Identifier: Apache-2.0
"""The verify path: decides in forward_extend, acts where the engine calls extend_attention_fwd.

The KV write stays the engine's, and so does every call that isn't eligible. Whatever fails in here ends in the engine's
own kernel with the engine's own arguments, once.
"""
import functools
import sys
from collections.abc import Callable

from . import eligible
from . import stats_format as f
from .contract import KERNEL_LEADING
from .patch import PATCH, Patch

_MISSING = object()
_ATTRIBUTE = "extend_attention_fwd"


def _is_compiling() -> bool:
    """Inside torch.compile nothing is decided: the trace keeps the engine's own call."""
    torch = sys.modules.get("torch")
    return torch is not None and hasattr(torch, "compiler") and torch.compiler.is_compiling()


class _Call:
    """Stands in for backend.extend_attention_fwd during one forward_extend."""

    __slots__ = ("_patch", "_real", "_layer", "_batch", "reached")

    def __init__(self, patch: Patch, real: Callable, layer: object, batch: object):
        self._patch, self._real, self._layer, self._batch = patch, real, layer, batch
        self.reached = False

    def __call__(self, *args: object, **kwargs: object) -> object:
        self.reached = True
        try:
            bound, reason = self._bind(args, kwargs)
            captured = reason is None and self._patch.graphs.wanted(bound["q_extend"])
            if reason is None and not captured:
                self._patch.see_call(bound)
            layer = int(getattr(self._layer, "layer_id", -1))
        except Exception as error:
            self._patch.failed(error)
            return self._real(*args, **kwargs)
        if reason is not None:
            self._patch.hand_back(reason)
            return self._real(*args, **kwargs)
        if captured:
            return self._patch.graphs.capture(self._real, args, kwargs, bound, layer)
        return _answer(self._patch, self._real, args, kwargs, bound, layer)

    def _bind(self, args: tuple, kwargs: dict[str, object]) -> tuple[dict[str, object] | None, int | None]:
        try:
            signature = _signature(self._real)
        except (ValueError, TypeError):
            return None, f.BACK_SIGNATURE
        bound = signature.bind(args, kwargs)
        if bound is None or any(name not in bound for name in KERNEL_LEADING):
            return None, f.BACK_SIGNATURE
        reason = eligible.check_signature(signature, bound)
        if reason is None:
            reason = eligible.check_call(bound, getattr(self._batch, "seq_lens_sum", None))
        return bound, reason


@functools.lru_cache(maxsize=16)
def _signature(function: Callable) -> eligible.Signature:
    return eligible.read_signature(function)


def _answer(patch: Patch, real: Callable, args: tuple, kwargs: dict[str, object], bound: dict[str, object],
            layer: int) -> object:
    """An eligible call outside CUDA graphs: the mode in force is read here."""
    mode, kernel = patch.mode, patch.kernel
    if mode == f.ON:
        try:
            kernel.verify(bound, bound["o_extend"])
        except Exception as error:
            patch.kernel_failed(error)
            return real(*args, **kwargs)
        patch.kernel_answered()
        patch.counters.calls_kernel += 1
        return None
    result = real(*args, **kwargs)
    if mode == f.VALIDATE:
        try:
            ours = kernel.scratch(bound["o_extend"])
            kernel.verify(bound, ours)
            kernel.compare(ours, bound["o_extend"], bound, layer)
        except Exception as error:
            patch.kernel_failed(error)
            return result
        patch.kernel_answered()
    patch.counters.calls_engine += 1
    return result


def _decide(patch: Patch, backend: object, k: object, v: object, layer: object, batch: object) -> _Call | None:
    """A stand-in for this call, or None: the original runs untouched."""
    if not batch.forward_mode.is_target_verify() or _is_compiling() or not patch.ready():
        return None
    reason = eligible.check_layer(backend, layer, k, v)
    if reason is not None:
        patch.hand_back(reason)
        return None
    return _Call(patch, getattr(backend, _ATTRIBUTE), layer, batch)


def wrap_forward_extend(original: Callable, patch: Patch) -> Callable:
    """forward_extend(self, q, k, v, layer, forward_batch, ...) with the verify path in front."""

    @functools.wraps(original)
    def forward_extend(self, q, k, v, layer, forward_batch, *args, **kwargs):  # noqa: ANN001
        try:
            call = _decide(patch, self, k, v, layer, forward_batch)
        except Exception as error:
            patch.failed(error)
            call = None
        if call is None:
            return original(self, q, k, v, layer, forward_batch, *args, **kwargs)
        own = self.__dict__.get(_ATTRIBUTE, _MISSING)
        setattr(self, _ATTRIBUTE, call)
        try:
            result = original(self, q, k, v, layer, forward_batch, *args, **kwargs)
        finally:
            if own is _MISSING:
                delattr(self, _ATTRIBUTE)
            else:
                setattr(self, _ATTRIBUTE, own)
        if not call.reached:
            patch.hand_back(f.BACK_SIGNATURE)  # the engine took a way of its own
        return result

    forward_extend.__kdtree__ = True
    return forward_extend


def wrap_init(original: Callable, patch: Patch) -> Callable:
    """__init__(self, model_runner, ...): a backend of the target model is what makes a process a rank."""

    @functools.wraps(original)
    def init(self, model_runner, *args, **kwargs):  # noqa: ANN001
        result = original(self, model_runner, *args, **kwargs)
        try:
            if not getattr(model_runner, "is_draft_worker", False) and patch.ready(model_runner):
                patch.learn(model_runner)
        except Exception as error:
            patch.failed(error)
        return result

    init.__kdtree__ = True
    return init


def patch_backend(module: object) -> None:
    """Wraps TritonAttnBackend of its module, once. Errors: AttributeError if there is no such class or method."""
    cls = module.TritonAttnBackend
    if getattr(cls.__dict__.get("forward_extend"), "__kdtree__", False):
        return
    cls.forward_extend = wrap_forward_extend(cls.__dict__["forward_extend"], PATCH)
    cls.__init__ = wrap_init(cls.__dict__["__init__"], PATCH)
