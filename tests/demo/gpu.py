# SPDX-License-Identifier: Apache-2.0
"""What a throw-away host needs to see this machine's NVIDIA GPUs: device nodes, and the driver's libraries."""

from __future__ import annotations

import subprocess
from pathlib import Path

from machine import Bind

# The driver's user space; the rest (CUDA runtime, cuBLAS …) comes with the engine's Python environment.
_LIBRARIES = ("libcuda.so", "libnvidia-ml.so", "libnvidia-ptxjitcompiler.so", "libnvidia-nvvm.so")


def present() -> bool:
    """True where a GPU's device node and the driver's libcuda are there."""
    return bool(list(Path("/dev").glob("nvidia[0-9]*"))) and any("libcuda.so" in path for path in _cached_libraries())


def binds() -> list[Bind]:
    """Device nodes (writable, as CUDA wants them) and libraries, at the paths that they have here."""
    nodes = [path for path in sorted(Path("/dev").glob("nvidia*")) if not path.is_dir()]
    nodes += sorted(Path("/dev/nvidia-caps").glob("*")) if Path("/dev/nvidia-caps").is_dir() else []
    libraries = sorted({path for path in _cached_libraries() if Path(path).name.startswith(_LIBRARIES)})
    return [Bind(node, writable=True) for node in nodes] + [Bind(Path(path)) for path in libraries]


def _cached_libraries() -> list[str]:
    done = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True)
    return [line.split("=> ")[1].strip() for line in done.stdout.splitlines() if "=> " in line]
