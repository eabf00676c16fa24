# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the kernel's tests: the built library, loaded once, and the device to run on.

The library is $KDTREE_TEST_LIB, else that of $KDTREE_BUILD (the Makefile sets it), else build/gpu's or build/dev's.
"""

import os
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "kernel" / "python"))


def _library() -> Path:
    if given := os.environ.get("KDTREE_TEST_LIB"):
        return Path(given)
    builds = [os.environ.get("KDTREE_BUILD", ""), str(ROOT / "build/gpu"), str(ROOT / "build/dev")]
    candidates = [Path(build) / "kernel" / "libkdtree_torch.so" for build in builds if build]
    return next((path for path in candidates if path.exists()), candidates[0])


@pytest.fixture(scope="session")
def library() -> str:
    """Path of libkdtree_torch.so, loaded."""
    path = _library()
    assert path.exists(), f"{path} is not built; run 'make build' or set KDTREE_TEST_LIB"
    from kdtree_kernel.ops import load

    load(str(path))
    return str(path)


def _devices() -> list:
    no_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")
    return [pytest.param("cpu", id="cpu"), pytest.param("cuda", marks=no_gpu, id="cuda")]


@pytest.fixture(params=_devices())
def device(request: pytest.FixtureRequest, library: str) -> str:
    """"cpu" and, where there is one, "cuda"."""
    return request.param


@pytest.fixture
def gpu(library: str) -> str:
    """"cuda"; the test is skipped where there is no GPU."""
    if not torch.cuda.is_available():
        pytest.skip("no GPU on this machine")
    return "cuda"
