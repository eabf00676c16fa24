# SPDX-License-Identifier: Apache-2.0
"""The verify path: decides in forward_extend, acts where the engine calls extend_attention_fwd.

The KV write stays the engine's, and so does every call that isn't eligible. Whatever fails in here ends in the engine's
own kernel with the engine's own arguments, once.
"""
import functools
from collections.abc import Callable

from . import eligible, phase
from . import stats_format as f
from .contract import KERNEL_LEADING
from .graphs import Site
from .patch import PATCH, Patch

_MISSING = object()
_ATTRIBUTE = "extend_attention_fwd"


class _Call:
    """Stands in for backend.extend_attention_fwd during one forward_extend."""

    __slots__ = ("_patch", "_function", "site", "_batch", "_args", "_kwargs", "reached")

    def __init__(self, patch: Patch, function: Callable, site: Site, batch: object):
        self._patch, self._function, self.site, self._batch = patch, function, site, batch
        self._args: tuple = ()
        self._kwargs: dict[str, object] = {}
        self.reached = False

    def real(self, **replaced: object) -> object:
        """The engine's own kernel with the engine's own arguments, passed as the engine passes them; some replaced."""
        args, kwargs = list(self._args), dict(self._kwargs)
        for name, value in replaced.items():
            at = _signature(self._function).names.index(name)
            if at < len(args):
                args[at] = value
            else:
                kwargs[name] = value
        return self._function(*args, **kwargs)

    def __call__(self, *args: object, **kwargs: object) -> object:
        self.reached = True
        self._args, self._kwargs = args, kwargs
        try:
            bound, reason = self._bind(args, kwargs)
            captured = reason is None and self._patch.graphs.wanted(bound["q_extend"])
            if reason is None and not captured:
                self._patch.see_call(bound)
        except Exception as error:
            self._patch.failed(error)
            return self.real()
        if reason is not None:
            self._patch.hand_back(reason, self.site)
            return self.real()
        if captured:
            return self._patch.graphs.capture(self, bound, self.site)
        return _answer(self._patch, self, bound, self.site.layer)

    def _bind(self, args: tuple, kwargs: dict[str, object]) -> tuple[dict[str, object] | None, int | None]:
        try:
            signature = _signature(self._function)
        except (ValueError, TypeError):
            return None, f.BACK_SIGNATURE
        bound = signature.bind(args, kwargs)
        if bound is None or any(name not in bound for name in KERNEL_LEADING):
            return None, f.BACK_SIGNATURE
        reason = eligible.check_signature(signature, bound)
        if reason is None:
            reason = eligible.check_call(bound, getattr(self._batch, "seq_lens_sum", None), self._patch.kernel.proven_kv)
        return bound, reason


@functools.lru_cache(maxsize=16)
def _signature(function: Callable) -> eligible.Signature:
    return eligible.read_signature(function)


def _answer(patch: Patch, call: _Call, bound: dict[str, object], layer: int) -> object:
    """An eligible call outside CUDA graphs: the mode in force is read here."""
    mode, kernel, batch = patch.mode, patch.kernel, bound["qo_indptr"].shape[0] - 1
    if mode == f.ON:
        try:
            kernel.verify(bound, bound["o_extend"])
        except Exception as error:
            patch.kernel_failed(error)
            return call.real()
        patch.kernel_answered()
        patch.counters.answered(batch, True)
        return None
    result = call.real()
    if mode == f.VALIDATE:
        try:
            ours = kernel.scratch(bound["o_extend"])
            kernel.verify(bound, ours)
            kernel.compare(ours, bound["o_extend"], bound, layer)
        except Exception as error:
            patch.kernel_failed(error)
            return result
        patch.kernel_answered()
    patch.counters.answered(batch, False)
    return result


def _decide(patch: Patch, backend: object, q: object, k: object, v: object, layer: object,
            batch: object) -> _Call | None:
    """A stand-in for this call, or None: the original runs untouched."""
    if not batch.forward_mode.is_target_verify() or phase.is_compiling() or not patch.ready():
        return None
    site = Site(backend, q, int(getattr(layer, "layer_id", -1)))
    reason = eligible.check_layer(backend, layer, k, v)
    if reason is not None:
        patch.hand_back(reason, site)
        return None
    return _Call(patch, getattr(backend, _ATTRIBUTE), site, batch)


def wrap_forward_extend(original: Callable, patch: Patch) -> Callable:
    """forward_extend(self, q, k, v, layer, forward_batch, ...) with the verify path in front."""

    @functools.wraps(original)
    def forward_extend(self, q, k, v, layer, forward_batch, *args, **kwargs):  # noqa: ANN001
        try:
            call = _decide(patch, self, q, k, v, layer, forward_batch)
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
            patch.hand_back(f.BACK_SIGNATURE, call.site)  # the engine took a way of its own
        return result

    forward_extend.__kdtree__ = True
    return forward_extend


def wrap_init(original: Callable, patch: Patch) -> Callable:
    """__init__(self, model_runner, ...): a backend of the target model is what makes a process a rank."""

    @functools.wraps(original)
    def init(self, model_runner, *args, **kwargs):  # noqa: ANN001
        result = original(self, model_runner, *args, **kwargs)
        try:
            if not getattr(model_runner, "is_draft_worker", False):
                patch.ready(model_runner)
                patch.learn(model_runner)  # where it stands aside too: whose file says so
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
