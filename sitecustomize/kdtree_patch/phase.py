# SPDX-License-Identifier: Apache-2.0
"""What torch and the engine are doing with the code that runs now. Asks, never imports."""
import sys

# Where SGLang keeps is_capture_mode. Its get_is_capture_mode() won't do: that is also true while a breakable graph is
# replayed, with the requests that are served.
_CAPTURE_MODULES = ("sglang.srt.model_executor.runner_utils.capture_mode",
                    "sglang.srt.model_executor.cuda_graph_runner")


def is_compiling() -> bool:
    """Inside torch.compile nothing of ours is traced: the trace keeps the engine's own call."""
    torch = sys.modules.get("torch")
    return torch is not None and hasattr(torch, "compiler") and torch.compiler.is_compiling()


def engine_captures() -> bool:
    """True while SGLang is between the start of its first warm-up and the end of its last capture."""
    return any(getattr(sys.modules.get(name), "is_capture_mode", False) is True for name in _CAPTURE_MODULES)


def is_recording(tensor: object) -> bool:
    """A CUDA graph is recording on the current stream of a GPU's tensor, right now."""
    return tensor.device.type == "cuda" and bool(sys.modules["torch"].cuda.is_current_stream_capturing())
