# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the patch tests; what they are made of is in patch_rig.py."""
import subprocess
from pathlib import Path

import pytest

from patch_rig import LIGHT, LightRig, Rig


@pytest.fixture(scope="session")
def light_library(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The light engine's stand-in library, built."""
    out = tmp_path_factory.mktemp("light") / "libkdtree_torch.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", out, LIGHT / "kernel" / "marker.c"], check=True)
    return out.read_bytes()


@pytest.fixture
def light(tmp_path: Path, light_library: bytes) -> LightRig:
    LightRig.library_bytes = light_library
    return LightRig(tmp_path)


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)
