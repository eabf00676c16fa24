# SPDX-License-Identifier: Apache-2.0
"""What of the router's choices is counted, with the light engine's processes; the counting itself is
tests/kernel/test_observers.py's."""
import pytest

from kdtree_patch import stats_format as f
from kdtree_patch.moe_table import near
from patch_rig import LightRig
from light_process import CODE, serve

ROUTER = CODE + """
scene = Scene(rank=1)
scene.call()
a, b, pad = [9, 8, 0, 0], [0, 0, 9, 8], [0, 9, 8, 0]
def layers(*rows):
    return lambda: [route(layer, rows) for layer in (3, 4)]
"""


def test_router_choices_are_counted(light: LightRig) -> None:
    code = ROUTER + """
one_pass(layers(a, a, pad), valid=2)                   # step 1: experts 0, 1 only
one_pass(layers(a, b), valid=2)                        # step 2: all four
one_pass(lambda: route(3, [pad] * 50, allow=False), valid=50)
show(stats=stats(5.0, lambda s: s["moe_steps"] == 3))
"""
    found, _, _ = serve(light, code)
    assert (found["moe_layers"], found["moe_experts"], found["moe_top_k"], found["moe_first_layer"]) == (2, 4, 2, 3)
    assert (found["moe_steps"], found["moe_tokens"]) == (3, 54)
    sections = found["sections"]
    assert {kind: sections[kind] for kind in "1234"} == {"1": [[3, 3, 1, 1]] * 2, "2": [[6]] * 2, "3": [[2]] * 2, "4": [[0, 1]] * 2}
    # Of four assignments the fullest rank has four, then two: the second step is shared.
    assert sections["5"] == [[4 + 2]] * 2 and sections["6"] == [[f.STRAGGLER_SHARE * 3 // 2, f.STRAGGLER_SHARE // 2]] * 2
    assert sections["7"] == [[2, 2], [50, 1]] + [[0, 0]] * 14


def test_sizes_of_steps_are_kept_as_few_numbers() -> None:
    """All up to 256, then to the nearest of sixteen in each power of two, so never more than a thirty-second off."""
    assert [near(rows) for rows in (1, 9, 255, 256, 257, 265, 511, 4000)] == [1, 9, 255, 256, 256, 272, 512, 3968]
    assert len({near(rows) for rows in range(1, 1 << 20)}) < 256 + 16 * 13
    assert all(abs(near(rows) - rows) <= rows / 32 for rows in range(1, 1 << 14))


def test_experts_of_one_engine_rank_are_counted_as_if_spread_over_all(light: LightRig) -> None:
    """EP 1: by TP rank."""
    code = ROUTER.replace("Scene(rank=1)", "Scene(rank=1, ep_size=1)") + """
one_pass(layers(a, b), valid=2)
show(stats=stats(5.0, lambda s: s["moe_steps"] == 1))
"""
    found, _, _ = serve(light, code)
    assert (found["moe_ep_size"], found["tp_size"]) == (1, 2)
    assert found["sections"]["4"] == [[0, 0]] * 2 and found["sections"]["6"] == [[f.STRAGGLER_SHARE // 2] * 2] * 2


@pytest.mark.parametrize("what", ["mode=ForwardMode.EXTEND", "mode=ForwardMode.MIXED", "mode=ForwardMode.IDLE",
                                  "draft=True", "global_num_tokens_cpu=[3, 3]"])
def test_passes_that_are_no_decode_or_verify_step_of_the_target_are_not_counted(light: LightRig, what: str) -> None:
    """Prefill, mixed, idle, a draft model's, and tokens of several ranks at once; a router called outside of a pass too."""
    code = ROUTER + f"""
one_pass(layers(a, b), valid=2)
one_pass(layers(a, a, pad), valid=3, {what})
layers(pad, pad)()
one_pass(layers(a), valid=1, mode=ForwardMode.DECODE)
show(stats=stats(5.0, lambda s: s["moe_steps"] == 2))
"""
    found, _, stderr = serve(light, code)
    assert stderr == "" and found["reason"] == ""
    assert (found["moe_steps"], found["moe_tokens"]) == (2, 3)
    assert found["sections"]["1"] == [[2, 2, 1, 1]] * 2 and found["sections"]["3"] == [[2]] * 2


def test_nothing_is_counted_while_torch_compiles(light: LightRig) -> None:
    code = ROUTER + """
import unittest.mock
with unittest.mock.patch("torch.compiler.is_compiling", return_value=True):
    one_pass(layers(a, b), valid=2)
show(stats=stats())
"""
    found, _, _ = serve(light, code)
    assert (found["moe_steps"], found["moe_layers"], found["reason"]) == (0, 0, "")


def test_an_observer_that_fails_takes_nothing_with_it(light: LightRig) -> None:
    code = CODE + """
scene = Scene()
import unittest.mock
with unittest.mock.patch("kdtree_patch.moe.Observer.observe", side_effect=RuntimeError("ours")):
    one_pass(lambda: route(0, [[1, 2, 3, 4]]), valid=1)
one_pass(lambda: route(0, [[1, 2, 3, 4]]), valid=1)
scene.call()
show(stats=stats())
"""
    found, _, stderr = serve(light, code, KDTREE_VERIFY="on")
    assert (found["patch_state"], found["calls_kernel"], found["moe_layers"]) == (f.ACTIVE, 1, 0)
    assert "MoE observer" in found["reason"] and stderr == ""
