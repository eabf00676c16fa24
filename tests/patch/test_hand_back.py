# SPDX-License-Identifier: Apache-2.0
"""What raises, in the kernel, in the patch, in the engine: the engine's own call, once."""
import pytest

from light_process import CODE, serve
from patch_rig import LightRig
from kdtree_patch import stats_format as f

FAILING = CODE + """
scene = Scene()
import torch._ops as ops
real = dict(ops.registry)
def raises(*a, **k): raise RuntimeError("illegal instruction\\nException raised from frame #0")
outs = [scene.call()]
script = {script}
for step in script:
    ops.registry["kdtree::verify_attn"] = raises if step == "x" else real["kdtree::verify_attn"]
    outs.append(scene.call())
show(stats=stats(), same=all(o == outs[0] for o in outs))
"""


@pytest.mark.parametrize("mode", ["validate", "on"])
def test_a_kernel_that_raises_is_handed_back_and_three_in_a_row_end_it(light: LightRig, mode: str) -> None:
    found, facts, stderr = serve(light, FAILING.format(script="'xx.xx.'"), KDTREE_VERIFY=mode)
    assert facts["same"] and stderr == ""
    assert (found["patch_state"], found["handed_back"][f.BACK_ERROR]) == (f.ACTIVE, 4)
    assert found["calls_kernel"] + found["calls_engine"] == 3
    assert found["reason"] == "kernel: illegal instruction", "one line, without the stack"
    found, facts, stderr = serve(light, FAILING.format(script="'xxx...'"), KDTREE_VERIFY=mode)
    assert facts["same"] and len(stderr.splitlines()) == 1
    assert (found["patch_state"], found["mode"], found["handed_back"][f.BACK_ERROR]) == (f.REFUSED, f.OFF, 3)
    assert found["reason"] == "kernel failed 3 times in a row: illegal instruction"
    assert found["calls_kernel"] + found["calls_engine"] == 1


@pytest.mark.parametrize("where", ["kdtree_patch.verify._decide", "kdtree_patch.eligible.check_layer",
                                   "kdtree_patch.eligible.check_call", "kdtree_patch.patch.Patch.see_call",
                                   "kdtree_patch.graphs.Graphs.wanted", "kdtree_patch.verify._Call._bind"])
def test_a_fault_of_our_own_ends_in_the_engines_call_once(light: LightRig, where: str) -> None:
    code = CODE + f"""
import unittest.mock
scene = Scene()
want = scene.call()
writes = []
pool = scene.pool
write = pool.set_kv_buffer
pool.set_kv_buffer = lambda *a, **k: (writes.append(1), write(*a, **k))
import kdtree_patch.verify
kdtree_patch.verify._signature.cache_clear()
with unittest.mock.patch({where!r}, side_effect=RuntimeError("ours")):
    got = scene.call()
show(stats=stats(), same=got == want, writes=len(writes))
"""
    found, facts, _ = serve(light, code, KDTREE_VERIFY="on")
    assert facts["same"] and facts["writes"] == 1
    assert found["handed_back"][f.BACK_ERROR] == 1 and found["calls_kernel"] == 1


def test_what_the_engine_raises_is_the_engines(light: LightRig) -> None:
    code = CODE + """
scene = Scene()
scene.call()
def broken(*a, **k): raise ValueError("the engine's own")
scene.backend.extend_attention_fwd = broken
calls = []
scene.pool.set_kv_buffer = lambda *a, **k: calls.append(1)
try:
    scene.call()
except ValueError as error:
    said = str(error)
show(stats=stats(), said=said, calls=len(calls), kept=scene.backend.extend_attention_fwd is broken)
"""
    found, facts, _ = serve(light, code, KDTREE_VERIFY="off")
    assert (facts["said"], facts["calls"], facts["kept"]) == ("the engine's own", 1, True)
    assert found["patch_state"] == f.ACTIVE
