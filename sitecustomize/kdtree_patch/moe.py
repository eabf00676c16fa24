# SPDX-License-Identifier: Apache-2.0
"""What the router chose, per layer and logical expert, in decode and verify passes of the target model: shared experts and
padding left out. Prefill, draft models and the engine's own warm-ups are no such passes.

ModelRunner.forward says when such a pass runs and how many of its tokens are real; capture_routed_experts_if_allowed
(SGLang 0.5.15 and newer), where ids are still logical, or before that select_experts, shows each layer's choice. The
counting is done on the engine's device (moe_table.py), so that a CUDA graph captures it.
"""
import functools
import inspect
import sys
from collections.abc import Callable

from . import phase
from . import stats_format as f
from .moe_table import LAYERS, MoeTable
from .patch import PATCH, Patch
from .stats import Section


def counted_rows(runner: object, batch: object) -> int:
    """Tokens of a pass that count, padding left out: 0 for any but a decode or verify pass of a target model, and where
    tokens of several ranks are routed together (attention data parallelism), whose padding nobody tells us. SGLang's own
    num_token_non_padded won't do: without expert parallelism a replay leaves it as some capture set it."""
    mode = batch.forward_mode
    if getattr(runner, "is_draft_worker", False) or not (mode.is_target_verify() or mode.is_decode()):
        return 0
    if getattr(batch, "global_num_tokens_cpu", None) is not None:
        return 0
    rows = getattr(batch, "num_token_non_padded_cpu", None)
    return rows if isinstance(rows, int) else int(batch.input_ids.shape[0])


class Observer:
    """Counts assignments. One thread observes (the engine's), one reads."""

    def __init__(self, patch: Patch):
        self._patch = patch
        self._table: MoeTable | None = None
        self._rows = 0  # of the pass that runs; 0 = it isn't counted
        self._begun = False  # the table knows of it
        self._top_k = 0
        self._placed = True  # an expert's rank is id // (experts / EP size), in every call so far

    def enter(self, rows: int) -> bool:
        """A pass begins. True: it is counted, and leave() must follow."""
        if rows <= 0 or self._rows:
            return False
        self._rows = rows
        if self._table is not None:
            self._table.begin(rows)
            self._begun = True
        return True

    def leave(self) -> None:
        begun, self._rows, self._begun = self._begun, 0, False
        if begun:
            self._table.end()

    def observe(self, layer: int, ids: object, experts: int, top_k: int, placed: bool) -> None:
        """ids: [tokens, k] logical expert ids of one layer; placed: an expert's rank is id // (experts / EP size)."""
        recording = phase.is_recording(ids)
        if not 0 <= layer < LAYERS or not experts:
            return
        if self._table is None and not recording:
            self._make(ids, experts, placed)
        if self._table is None or self._table.experts != experts or not (self._rows or recording):
            return
        if self._rows and not self._begun:  # the very first pass
            self._table.begin(self._rows)
            self._begun = True
        self._top_k, self._placed = top_k, self._placed and placed
        self._table.count(layer, ids)

    def _make(self, ids: object, experts: int, placed: bool) -> None:
        size = self._patch.ranks.moe_ep_size
        if size == 1:  # a slice of each expert on each rank: counted as if they lay in order over all of them
            size = self._patch.ranks.tp_size
        ranks = size if placed and size > 1 and experts % size == 0 else 0
        self._table = MoeTable(self._patch.kernel.ops, sys.modules["torch"], ids, experts, ranks)

    def read(self) -> tuple[dict[str, object], list[Section]]:
        """Stats fields and sections; both empty until one whole pass was seen."""
        if self._table is None:
            return {}, []
        values, sections = self._table.read(self._placed)
        return ({**values, "moe_top_k": self._top_k} if values else {}), sections


class Hooks:
    """The wrapped functions. `_call` is what select_experts said about the call that is running."""

    def __init__(self, observer: Observer, patch: Patch):
        self._observer, self._patch = observer, patch
        self._call: tuple[int, bool] = (0, True)  # experts, placed

    def _wanted(self) -> bool:
        return self._patch.state == f.ACTIVE and self._patch.moe is self._observer and not phase.is_compiling()

    def _see(self, config: object, layer: int | None, ids: object) -> None:
        if layer is None or not getattr(config, "allow_routed_experts_capture", True):
            return
        shared = int(getattr(config, "num_fused_shared_experts", 0) or 0)
        experts, placed = self._call
        self._observer.observe(layer, ids, experts, config.top_k - shared, placed)

    def wrap_capture(self, original: Callable) -> Callable:
        """capture_routed_experts_if_allowed(topk_config, layer_id, topk_ids)."""

        @functools.wraps(original)
        def capture(topk_config, layer_id, topk_ids, *args, **kwargs):  # noqa: ANN001
            if self._wanted():
                try:
                    self._see(topk_config, layer_id, topk_ids)
                except Exception as error:
                    self._patch.observer_failed(error)
            return original(topk_config, layer_id, topk_ids, *args, **kwargs)

        capture.__kdtree__ = True
        return capture

    def wrap_select(self, original: Callable, sees_ids: bool) -> Callable:
        """select_experts(...): tells how many experts there are and where; sees_ids: reads the result's ids too."""
        signature = inspect.signature(original)

        @functools.wraps(original)
        def select(*args, **kwargs):  # noqa: ANN001
            if not self._wanted():
                return original(*args, **kwargs)
            bound: dict[str, object] = {}
            try:
                bound = signature.bind(*args, **kwargs).arguments
                self._call = int(bound["router_logits"].shape[-1]), bound.get("expert_location_dispatch_info") is None
            except Exception as error:
                self._patch.observer_failed(error)
            try:
                result = original(*args, **kwargs)
                if sees_ids and bound:
                    try:
                        self._see(bound["topk_config"], bound.get("layer_id"), result.topk_ids)
                    except Exception as error:
                        self._patch.observer_failed(error)
                return result
            finally:
                self._call = 0, True

        select.__kdtree__ = True
        return select


def patch_topk(module: object) -> None:
    """Wraps the router's functions of their module, once. Errors: AttributeError if select_experts is not there."""
    if getattr(module.select_experts, "__kdtree__", False):
        return
    hooks = Hooks(_observer(), PATCH)
    captures = hasattr(module, "capture_routed_experts_if_allowed")
    if captures:
        module.capture_routed_experts_if_allowed = hooks.wrap_capture(module.capture_routed_experts_if_allowed)
    module.select_experts = hooks.wrap_select(module.select_experts, sees_ids=not captures)


def wrap_forward(original: Callable, patch: Patch) -> Callable:
    """ModelRunner.forward(self, forward_batch, ...): tells the observer when a pass that counts begins and ends."""

    @functools.wraps(original)
    def forward(self, forward_batch, *args, **kwargs):  # noqa: ANN001
        observer, counted = patch.moe, False
        if observer is not None and patch.state == f.ACTIVE:
            try:
                counted = observer.enter(counted_rows(self, forward_batch))
            except Exception as error:
                patch.observer_failed(error)
        try:
            return original(self, forward_batch, *args, **kwargs)
        finally:
            if counted:
                try:
                    observer.leave()
                except Exception as error:
                    patch.observer_failed(error)

    forward.__kdtree__ = True
    return forward


def patch_runner(module: object) -> None:
    """Wraps ModelRunner.forward, once. Errors: AttributeError if it is not there."""
    cls = module.ModelRunner
    if not getattr(cls.__dict__["forward"], "__kdtree__", False):
        cls.forward = wrap_forward(cls.__dict__["forward"], PATCH)


def _observer() -> Observer:
    if PATCH.moe is None:
        PATCH.moe = Observer(PATCH)
    return PATCH.moe
