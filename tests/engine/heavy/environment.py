# SPDX-License-Identifier: Apache-2.0
"""Environment of a rank before its first import of torch, Triton or SGLang."""
import os


def prepare(device: str) -> None:
    """On the CPU: Triton's interpreter, no torch.compile (its first use would build C++ for half a minute)."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK", "1")
    if device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
        os.environ["TORCHDYNAMO_DISABLE"] = "1"
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    else:
        os.environ.setdefault("SGLANG_IS_FLASHINFER_AVAILABLE", "false")
