# SPDX-License-Identifier: Apache-2.0
"""Tier 0: the allocator's free list is kept sorted, and that it took is read back."""
from light_process import CODE, serve
from patch_rig import LightRig
from kdtree_patch import stats_format as f

SORT = CODE + "scene = Scene()\nscene.call()\nshow(stats=stats(), need=scene.allocator.need_sort)"


def test_the_free_list_is_sorted_and_read_back(light: LightRig) -> None:
    for value, need, state in (("1", True, 1), ("0", False, 0), (None, True, 1)):
        found, facts, _ = serve(light, SORT, KDTREE_DEFRAG_SORT=value)
        assert (facts["need"], found["sort_state"]) == (need, state)


def test_a_sort_that_doesnt_take_is_said(light: LightRig) -> None:
    code = CODE + """
from sglang.srt.mem_cache.allocator import base
base.BaseTokenToKVPoolAllocator.need_sort = property(lambda self: False, lambda self, value: None)
scene = Scene()
scene.call()
show(stats=stats())
"""
    found, _, _ = serve(light, code, KDTREE_DEFRAG_SORT="1")
    assert (found["sort_state"], found["patch_state"]) == (2, f.ACTIVE)
