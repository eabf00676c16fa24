# SPDX-License-Identifier: Apache-2.0
"""What the router chose, per layer and logical expert: the target model's own tokens, shared experts and padding left out.

Hooks capture_routed_experts_if_allowed (SGLang 0.5.15 and newer), where ids are still logical; before that version,
select_experts. CPU tensors are counted here. CUDA tensors are not looked at: that would make the host wait, and nothing
of it would be captured into a graph. Then all stays 0, which says "not observed".
"""
import functools
import inspect
from array import array
from collections.abc import Callable

from . import stats_format as f
from .patch import PATCH, Patch
from .rank import Ranks
from .stats import Section


class _Layer:
    """Counters of one layer since the start."""

    __slots__ = ("tokens", "unique", "steps", "idle")

    def __init__(self, experts: int, ep_size: int):
        self.tokens = array("Q", bytes(8 * experts))
        self.unique = 0
        self.steps = 0
        self.idle = array("Q", bytes(8 * max(ep_size, 0)))


class Observer:
    """Counts assignments. One thread observes (the engine's), one reads; a read may see a step in the middle."""

    def __init__(self) -> None:
        self.experts = 0  # logical, routed; 0 = unknown, then nothing is counted
        self.draft = False  # the forward that runs now is a draft model's
        self.valid: int | None = None  # tokens of the forward that runs now, padding left out; None = unknown
        self._top_k = 0
        self._ep_size = 0
        self._layers: dict[int, _Layer] = {}
        self._last = -1
        self._steps = 0
        self._tokens = 0
        self._complete = False  # one whole step was seen, so the number of layers is known

    def observe(self, layer: int, ids: object, top_k: int, ranks: Ranks, valid: int | None, placed: bool) -> None:
        """ids: [tokens, k] logical expert ids of one layer, on the CPU; valid: rows that are not padding, None = what
        the forward says, else all; placed: an expert's rank is id // (experts / EP size)."""
        if not self.experts or self.draft or ids.device.type != "cpu":
            return
        known = valid if valid is not None else self.valid
        rows = ids.tolist()[:ids.shape[0] if known is None else min(known, ids.shape[0])]
        if layer <= self._last or not self._layers:
            self._complete = self._complete or bool(self._layers)
            self._steps += 1
            self._tokens += len(rows)
        self._last, self._top_k = layer, top_k
        size = ranks.moe_ep_size
        self._ep_size = size if placed and size > 0 and self.experts % size == 0 else 0
        self._add(layer, rows)

    def _add(self, layer: int, rows: list[list[int]]) -> None:
        counts = self._layers.get(layer)
        if counts is None or len(counts.tokens) != self.experts or len(counts.idle) != self._ep_size:
            counts = self._layers[layer] = _Layer(self.experts, self._ep_size)
        chosen = [e for row in rows for e in row if 0 <= e < self.experts]
        for expert in chosen:
            counts.tokens[expert] += 1
        unique = set(chosen)
        counts.unique += len(unique)
        counts.steps += 1
        if self._ep_size:
            share = self.experts // self._ep_size
            for rank in set(range(self._ep_size)) - {expert // share for expert in unique}:
                counts.idle[rank] += 1

    def read(self) -> tuple[dict[str, object], list[Section]]:
        """Stats fields and sections; both empty until one whole step was seen."""
        if not self._complete:
            return {}, []
        layers = dict(self._layers)
        first, rows = min(layers), max(layers) - min(layers) + 1
        empty = _Layer(self.experts, self._ep_size)
        order = [layers.get(first + i, empty) for i in range(rows)]
        values = {"moe_layers": rows, "moe_experts": self.experts, "moe_top_k": self._top_k, "moe_first_layer": first,
                  "moe_steps": self._steps, "moe_tokens": self._tokens}
        sections = [(f.SECTION_EXPERT_TOKENS, rows, self.experts, _join(layer.tokens for layer in order)),
                    (f.SECTION_UNIQUE_EXPERTS, rows, 1, array("Q", [layer.unique for layer in order])),
                    (f.SECTION_LAYER_STEPS, rows, 1, array("Q", [layer.steps for layer in order]))]
        if self._ep_size:
            sections.append((f.SECTION_IDLE_RANKS, rows, self._ep_size, _join(layer.idle for layer in order)))
        return values, sections


def _join(parts: object) -> array:
    joined = array("Q")
    for part in parts:
        joined.extend(part)
    return joined


class Hooks:
    """The wrapped functions. `_call` is what select_experts said about the call that is running."""

    def __init__(self, observer: Observer, patch: Patch):
        self._observer, self._patch = observer, patch
        self._call: tuple[int | None, bool] = (None, True)

    def _see(self, config: object, layer: int | None, ids: object) -> None:
        wanted = self._patch.state == f.ACTIVE and self._patch.moe is self._observer and layer is not None
        if not wanted or not getattr(config, "allow_routed_experts_capture", True):
            return
        shared = int(getattr(config, "num_fused_shared_experts", 0) or 0)
        self._observer.observe(layer, ids, config.top_k - shared, self._patch.ranks, *self._call)

    def wrap_capture(self, original: Callable) -> Callable:
        """capture_routed_experts_if_allowed(topk_config, layer_id, topk_ids)."""

        @functools.wraps(original)
        def capture(topk_config, layer_id, topk_ids, *args, **kwargs):  # noqa: ANN001
            try:
                self._see(topk_config, layer_id, topk_ids)
            except Exception as error:
                self._patch.observer_failed(error)
            return original(topk_config, layer_id, topk_ids, *args, **kwargs)

        capture.__kdtree__ = True
        return capture

    def wrap_select(self, original: Callable, sees_ids: bool) -> Callable:
        """select_experts(...): tells how many experts and tokens there are; sees_ids: reads the result's ids too."""
        signature = inspect.signature(original)

        @functools.wraps(original)
        def select(*args, **kwargs):  # noqa: ANN001
            bound: dict[str, object] = {}
            try:
                bound = signature.bind(*args, **kwargs).arguments
                self._enter(bound)
            except Exception as error:
                self._patch.observer_failed(error)
            try:
                result = original(*args, **kwargs)
                if sees_ids:
                    try:
                        self._see(bound["topk_config"], bound.get("layer_id"), result.topk_ids)
                    except Exception as error:
                        self._patch.observer_failed(error)
                return result
            finally:
                self._call = (None, True)

        select.__kdtree__ = True
        return select

    def _enter(self, bound: dict[str, object]) -> None:
        if self._observer.draft:
            return
        self._observer.experts = int(bound["router_logits"].shape[-1])
        valid = bound.get("num_token_non_padded")
        on_host = valid is not None and getattr(getattr(valid, "device", None), "type", "cpu") == "cpu"
        self._call = (int(valid) if on_host else None, bound.get("expert_location_dispatch_info") is None)


def patch_topk(module: object) -> None:
    """Wraps the router's functions of their module, once. Errors: AttributeError if select_experts is not there."""
    if getattr(module.select_experts, "__kdtree__", False):
        return
    hooks = Hooks(_observer(), PATCH)
    captures = hasattr(module, "capture_routed_experts_if_allowed")
    if captures:
        module.capture_routed_experts_if_allowed = hooks.wrap_capture(module.capture_routed_experts_if_allowed)
    module.select_experts = hooks.wrap_select(module.select_experts, sees_ids=not captures)


def wrap_forward(original: Callable, observer: Observer) -> Callable:
    """ModelRunner.forward(self, forward_batch, ...): says whose forward runs, and how many of its tokens are real."""

    @functools.wraps(original)
    def forward(self, forward_batch, *args, **kwargs):  # noqa: ANN001
        before = observer.draft, observer.valid
        valid = getattr(forward_batch, "num_token_non_padded_cpu", None)
        observer.draft = bool(getattr(self, "is_draft_worker", False))
        observer.valid = valid if isinstance(valid, int) else None
        try:
            return original(self, forward_batch, *args, **kwargs)
        finally:
            observer.draft, observer.valid = before

    forward.__kdtree__ = True
    return forward


def patch_runner(module: object) -> None:
    """Wraps ModelRunner.forward, once. Errors: AttributeError if it is not there."""
    cls = module.ModelRunner
    if not getattr(cls.__dict__["forward"], "__kdtree__", False):
        cls.forward = wrap_forward(cls.__dict__["forward"], _observer())


def _observer() -> Observer:
    if PATCH.moe is None:
        PATCH.moe = Observer()
    return PATCH.moe
