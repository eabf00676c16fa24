# SPDX-License-Identifier: Apache-2.0
"""kdtree inside an SGLang process: decides which verify-attention calls kdtree's kernel answers, counts, reports.

    hook, installer        watch for the engine's modules and wrap them; env reads the KDTREE_* environment
    fingerprint, probe     which engines are known (engines.json)
    verify, eligible       the verify path and its reasons to hand back; phase: what torch and the engine are at
    graphs, words          the same under CUDA graphs; what host and graph say to each other
    release, kernel        check the release; load and call torch.ops.kdtree
    compare, pinned        what validate found, in memory that the GPU writes
    patch, control         this process's state and side thread, which follows the control file
    report, stats          the stats file (stats_format: its layout); counters: what the host counts
    moe, moe_table         the router's load
    sort, rank             the KV free list's order, which rank this is

Two ways in, one install(): bootstrap() from sitecustomize, install() as SGLang's plugin entry point.
"""
import sys

# The engine's modules that are patched right after their import; see installer.py for what is done to each.
TARGETS = ("sglang.srt.layers.attention.triton_backend", "sglang.srt.mem_cache.allocator",
           "sglang.srt.mem_cache.allocator.token", "sglang.srt.layers.moe.topk",
           "sglang.srt.model_executor.model_runner")


def _patch(module: object) -> None:
    from . import installer

    installer.patch_module(module)


def bootstrap() -> None:
    """What sitecustomize calls: waits for the engine's modules, imports none of them. Idempotent."""
    from .hook import watch

    watch(TARGETS, _patch)


def install() -> None:
    """SGLang's plugin entry point: as bootstrap(), and patches what is already imported. Idempotent. Without
    KDTREE_VERIFY it does nothing."""
    import os

    if not os.environ.get("KDTREE_VERIFY"):
        return
    from . import installer

    bootstrap()
    installer.start()
    for name in TARGETS:
        if name in sys.modules:
            _patch(sys.modules[name])
