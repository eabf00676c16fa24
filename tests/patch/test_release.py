# SPDX-License-Identifier: Apache-2.0
"""A worker runs only the files that its release's manifest lists."""
import hashlib
import shutil
from pathlib import Path

import pytest

from kdtree_patch import stats_format as f
from patch_rig import SITE, LightRig
from light_process import refused, serve


@pytest.fixture
def whole(light: LightRig) -> LightRig:
    """A release whose manifest lists all of it, as deploy makes it; the patch runs from there."""
    (light.python / "kdtree_kernel").unlink()
    skip = shutil.ignore_patterns("__pycache__")
    shutil.copytree(light.kernel_package, light.python / "kdtree_kernel", ignore=skip)
    shutil.copytree(SITE / "kdtree_patch", light.python / "kdtree_patch", ignore=skip)
    shutil.copy(SITE / "sitecustomize.py", light.python)
    (light.release / "lib" / "libkdtree.so").write_bytes(b"the other library")
    files = {str(p.relative_to(light.release)): hashlib.sha256(p.read_bytes()).hexdigest()
             for folder in ("lib", "python") for p in (light.release / folder).rglob("*") if p.is_file()}
    assert len(files) > 20
    light.write_manifest(files=files)
    return light


def test_a_whole_release_is_taken(whole: LightRig) -> None:
    found, _, stderr = serve(whole, path=str(whole.python), KDTREE_VERIFY="on")
    assert (found["patch_state"], found["calls_kernel"], stderr) == (f.ACTIVE, 1, "")


@pytest.mark.parametrize("name", ["lib/libkdtree.so", "python/kdtree_kernel/stand_in.py", "python/kdtree_patch/sort.py",
                                  "python/kdtree_patch/engines.json", "python/sitecustomize.py"])
@pytest.mark.parametrize("what", ["changed", "missing"])
def test_every_file_of_the_manifest_is_looked_at(whole: LightRig, name: str, what: str) -> None:
    path = whole.release / name
    if what == "changed":
        path.write_bytes(path.read_bytes() + b"\n")
    elif name.endswith(".so"):
        path.unlink()
    else:
        whole.manifest["files"][name + ".more"] = whole.manifest["files"].pop(name)
        whole.write_manifest()
        name += ".more"
    said = "is not the file that its manifest lists" if what == "changed" else "No such file"
    refused(whole, f"release file {whole.release / name}{' ' if what == 'changed' else ': '}{said}",
            path=str(whole.python), KDTREE_VERIFY="on")


def test_a_patch_from_elsewhere_is_refused(whole: LightRig, tmp_path: Path) -> None:
    """PYTHONPATH leads to another copy of the package than the release's."""
    other = tmp_path / "other"
    shutil.copytree(whole.python / "kdtree_patch", other / "kdtree_patch")
    refused(whole, "which is no file of release r1", path=f"{other}:{whole.python}", KDTREE_VERIFY="on")
