# SPDX-License-Identifier: Apache-2.0
"""Hooks of the GPU tests inside a real SGLang server; an SGLang plugin, found through PYTHONPATH alone. Never part of a
release: some of it writes wrong answers on purpose.

    KDTREE_TEST_WEIGHTS=SEED    random weights of useful size instead of SGLang's +-0.001 (weights.py)
    KDTREE_TEST_SKEW=A-B        the router sends every token to experts A..B
    KDTREE_TEST_CEILING=1       MLA attention writes zeros: the step time that no kernel can beat (ceiling.py)
    KDTREE_TEST_SKIP_PREFILL=N  prefill attention over a prefix of N or more tokens writes zeros: timing alone is then true
    KDTREE_TEST_FAULTS=1        kdtree's kernel can be made wrong while graphs replay (faults.py)
    KDTREE_TEST_COMMAND=FILE    orders from outside, looked at once a forward (orders.py): record, force, fault, recapture
"""
import os


def install() -> None:
    """SGLang's entry point."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    environ = os.environ
    if "KDTREE_TEST_WEIGHTS" in environ:
        from .weights import around_dummy_weights

        HookRegistry.register("sglang.srt.model_loader.loader.initialize_dummy_weights", around_dummy_weights,
                              HookType.AROUND)
    if "KDTREE_TEST_CEILING" in environ or "KDTREE_TEST_SKIP_PREFILL" in environ:
        from .ceiling import around_extend

        HookRegistry.register("sglang.srt.layers.attention.triton_backend.TritonAttnBackend.forward_extend",
                              around_extend, HookType.AROUND)
    if "KDTREE_TEST_FAULTS" in environ:
        from .faults import install_faults

        install_faults()
    if "KDTREE_TEST_COMMAND" in environ:
        from .orders import around_forward

        HookRegistry.register("sglang.srt.model_executor.model_runner.ModelRunner.forward", around_forward,
                              HookType.AROUND)
