# SPDX-License-Identifier: Apache-2.0
"""Runs one prefill and two verify steps of one rank and prints, as JSON, every call at the places where kdtree looks:
order, argument names, shapes, element types. Run under either engine's Python:

    python contract_trace.py light|heavy
"""
from __future__ import annotations

import importlib
import inspect
import json
import socket
import sys
from typing import Any, Callable

CALLS: list[dict[str, Any]] = []


def describe(value: Any) -> Any:
    """A tensor's looks, the kind of anything else. Model types (half precisions) look the same."""
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        kind = str(value.dtype).removeprefix("torch.")
        return {"dtype": "model" if kind in ("float16", "bfloat16") else kind, "shape": list(value.shape),
                "contiguous": value.is_contiguous(), "device": str(value.device.type)}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return type(value).__name__


def traced(name: str, original: Callable, skip: tuple[str, ...] = ("self",)) -> Callable:
    """`original`, noting how it was called: arguments given, bound to names, in the caller's way."""
    signature = inspect.signature(original)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        CALLS.append({"call": name, "positional": len(args), "keywords": sorted(kwargs),
                      "arguments": {key: describe(value) for key, value in given.items() if key not in skip}})
        return original(*args, **kwargs)

    return wrapper


def main(flavour: str) -> None:
    from serving.faults import Faults
    from serving.flags import parse
    from serving.model_port import Request

    module = importlib.import_module(f"{flavour}.model")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    flags = parse(["--model-path", "x", "--tp", "1", "--heads", "2", "--layers", "2"], "", 1, 2)

    from sglang.srt.layers.attention import triton_backend
    from sglang.srt.layers.moe import topk
    from sglang.srt.mem_cache import allocator

    backend = triton_backend.TritonAttnBackend
    made = backend.__init__

    def init(self: Any, model_runner: Any, *args: Any, **kwargs: Any) -> None:
        made(self, model_runner, *args, **kwargs)
        CALLS.append({"call": "TritonAttnBackend.__init__", "attributes": {
            name: describe(getattr(self, name, "missing")) for name in (
                "use_mla", "page_size", "dcp_size", "enable_deterministic", "is_draft_runner", "use_verify_splitkv",
                "num_draft_tokens", "sliding_window_size")},
            "runner": {name: describe(getattr(model_runner, name, "missing")) for name in (
                "is_draft_worker", "page_size", "device", "gpu_id")},
            "ps": {name: getattr(model_runner.ps, name) for name in (
                "tp_rank", "tp_size", "moe_ep_rank", "moe_ep_size")}})
        self.extend_attention_fwd = traced("extend_attention_fwd", self.extend_attention_fwd)
        pool = self.token_to_kv_pool
        pool.set_kv_buffer = traced("set_kv_buffer", pool.set_kv_buffer, ("layer",))

    backend.__init__ = init
    backend.forward_extend = traced("forward_extend", backend.forward_extend, ("self", "layer", "forward_batch"))
    chosen = allocator.TokenToKVPoolAllocator
    chosen.__init__ = traced("TokenToKVPoolAllocator.__init__", chosen.__init__, ("self", "size"))
    topk.capture_routed_experts_if_allowed = traced("capture_routed_experts_if_allowed",
                                                    topk.capture_routed_experts_if_allowed, ("topk_config",))

    model = module.make_model(flags, 0, port, Faults())
    model.join()
    model.load()
    model.make_cache()
    request = Request(0, [1, 2, 3, 4, 5], 100)
    request.output.append(model.prefill(request))
    other = Request(1, [6, 7], 100)
    other.output.append(model.prefill(other))
    for batch in ([request], [request, other]):
        model.verify(batch, [one.draft_tree(flags.draft_tokens) for one in batch])
        model.commit(batch, [[0]] * len(batch))
    print(json.dumps(CALLS))


if __name__ == "__main__":
    main(sys.argv[1])
