# SPDX-License-Identifier: Apache-2.0
"""Patches the engine's modules once they are imported. Whichever way it is reached, each class is wrapped once."""
from .patch import PATCH


def start() -> None:
    """Leaves a stats file that says passive (or refused). Never raises."""
    try:
        PATCH.start()
    except Exception as error:
        PATCH.refuse(f"can't start: {error!r}")


def patch_module(module: object) -> None:
    """What is to be done to this module. Never raises; a failure refuses for the whole process."""
    try:
        if not PATCH.usable():
            return
        name = module.__name__
        if name.endswith(".triton_backend"):
            from .verify import patch_backend

            patch_backend(module)
        elif ".allocator" in name:
            from .sort import patch_allocator

            patch_allocator(module)
        elif name.endswith(".topk"):
            from .moe import patch_topk

            patch_topk(module)
        elif name.endswith(".model_runner"):
            from .moe import patch_runner

            patch_runner(module)
    except Exception as error:
        PATCH.refuse(f"can't patch {getattr(module, '__name__', module)}: {error!r}")
