# SPDX-License-Identifier: Apache-2.0
"""SGLang's plugin entry point and the hook: both ways in, together and alone, patch once."""
from pathlib import Path

import pytest

from light_process import CODE, serve
from patch_rig import SITE, LightRig
from kdtree_patch import stats_format as f

PLUGIN = """
import sys, importlib
BEFORE = {before}
if BEFORE:
    from sglang.srt.plugins import load_plugins
    load_plugins()
""" + CODE + """
if not BEFORE:
    from sglang.srt.plugins import load_plugins
    load_plugins()
from kdtree_patch import bootstrap, install
bootstrap(); install(); install()
from sglang.srt.layers.attention.triton_backend import TritonAttnBackend
from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator
def depth(function):
    count = 0
    while hasattr(function, "__wrapped__"):
        function, count = function.__wrapped__, count + 1
    return count
scene = Scene()
out = scene.call()
show(stats=stats(), out=out, hooks=sum(type(x).__name__ == "_Finder" for x in sys.meta_path),
     depths=[depth(TritonAttnBackend.forward_extend), depth(TritonAttnBackend.__init__),
             depth(TokenToKVPoolAllocator.__init__), depth(topk.select_experts),
             depth(topk.capture_routed_experts_if_allowed)])
"""


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("sitecustomize", [True, False])
def test_each_way_in_patches_once(light: LightRig, tmp_path: Path, before: bool, sitecustomize: bool) -> None:
    """Entry point by PYTHONPATH alone, with the hook before it, after it, or not run (another sitecustomize hides it)."""
    path = ""
    if not sitecustomize:
        (tmp_path / "hides").mkdir()
        (tmp_path / "hides" / "sitecustomize.py").write_text("")
        path = str(tmp_path / "hides")
    found, facts, stderr = serve(light, PLUGIN.format(before=before), path=path, KDTREE_VERIFY="on")
    assert stderr == ""
    assert facts["depths"] == [1, 1, 1, 1, 1] and facts["hooks"] == 1
    assert (found["patch_state"], found["calls_kernel"]) == (f.ACTIVE, 1)


def test_the_entry_point_does_nothing_without_the_variable(light: LightRig) -> None:
    code = PLUGIN.format(before=True).split("from kdtree_patch import bootstrap")[0] + """
print(sorted(m for m in sys.modules if m.startswith("kdtree")), TritonAttnBackend.forward_extend.__qualname__,
      hasattr(TritonAttnBackend.forward_extend, "__wrapped__"))
"""
    done = light.run(code, KDTREE_VERIFY=None)
    assert done.stdout.strip() == "['kdtree_patch'] TritonAttnBackend.forward_extend False", done.stderr
    assert light.stats_files() == []


def test_dist_info_carries_the_projects_version() -> None:
    text = (SITE.parent / "CMakeLists.txt").read_text()
    version = text.split("project(kdtree VERSION ")[1].split()[0]
    assert f"Version: {version}\n" in (SITE / f"kdtree-{version}.dist-info" / "METADATA").read_text()
    listed = (SITE / "CMakeLists.txt").read_text()
    for path in [*(SITE / "kdtree_patch").glob("*.py"), *(SITE / "kdtree_patch").glob("*.json")]:
        assert f"kdtree_patch/{path.name}\n" in listed, f"{path.name} is not installed"
