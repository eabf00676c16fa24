# SPDX-License-Identifier: Apache-2.0
"""What the libraries show to the process they are loaded into: our names, and nothing of a C++ runtime."""

import subprocess
from pathlib import Path

import pytest


@pytest.mark.parametrize("name", ["libkdtree.so", "libkdtree_torch.so"])
def test_only_our_names_are_exported(library: str, name: str) -> None:
    path = Path(library).with_name(name)
    said = subprocess.run(["nm", "-D", "--defined-only", "--format=posix", path], check=True, capture_output=True, text=True).stdout
    foreign = [line.split()[0] for line in said.splitlines() if not line.startswith("kdtree_")]
    assert not foreign, f"{name} also exports {foreign[:5]}"
