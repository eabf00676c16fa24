# SPDX-License-Identifier: Apache-2.0
"""Releases for the two engines."""
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from engine_process import HERE, LIGHT_PYTHON, Release, probe


@pytest.fixture(scope="session")
def light_kernel(tmp_path_factory) -> Path:
    """The stand-in kernel project, built and installed as deploy does it."""
    root = tmp_path_factory.mktemp("light-kernel")
    for command in (["cmake", "-S", str(HERE / "light" / "kernel"), "-B", str(root / "build"),
                     f"-DKDTREE_PYTHON={LIGHT_PYTHON}", "-DKDTREE_WITH_CUDA=OFF"],
                    ["cmake", "--build", str(root / "build")],
                    ["cmake", "--install", str(root / "build"), "--prefix", str(root / "installed")]):
        subprocess.run(command, check=True, capture_output=True)
    return root / "installed"


@pytest.fixture
def light_release(tmp_path, light_kernel) -> Release:
    """A release for the light engine, which is accepted."""
    return Release(tmp_path / "kdtree", light_kernel, probe(str(LIGHT_PYTHON)))


def _real_kernel(tmp: Path) -> Path:
    """Prefix with the real kernel for this Python: from the build folder, else built for the CPU."""
    build = Path(os.environ.get("KDTREE_BUILD", "/nonexistent"))
    if (build / "kernel" / "libkdtree_torch.so").exists():
        prefix = tmp / "installed"
        (prefix / "lib").mkdir(parents=True)
        for name in ("libkdtree.so", "libkdtree_torch.so"):
            shutil.copy(build / "kernel" / name, prefix / "lib")
        shutil.copytree(HERE.parent.parent / "kernel" / "python", prefix / "python",
                        ignore=shutil.ignore_patterns("__pycache__"))
        return prefix
    for command in (["cmake", "-S", str(HERE.parent.parent / "kernel"), "-B", str(tmp / "build"), "-G", "Ninja",
                     f"-DKDTREE_PYTHON={sys.executable}", "-DKDTREE_WITH_CUDA=OFF",
                     "-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"],
                    ["cmake", "--build", str(tmp / "build"), "-j2"],
                    ["cmake", "--install", str(tmp / "build"), "--prefix", str(tmp / "installed")]):
        subprocess.run(command, check=True, capture_output=True)
    return tmp / "installed"


@pytest.fixture(scope="module")
def heavy_release(tmp_path_factory) -> Release:
    """A release for the heavy engine: the real kernel, a known engine."""
    pytest.importorskip("sglang", reason="SGLang is not in this Python; run the tests with the engine's")
    root = tmp_path_factory.mktemp("heavy")
    facts = probe(sys.executable)
    assert facts["known"], facts["differences"]
    return Release(root / "kdtree", _real_kernel(root), facts)
