# SPDX-License-Identifier: Apache-2.0
"""The path under CUDA graphs, walked on the CPU: warm-up, capture, then what a replay would do, with SGLang's own kernel.

There is no graph here: a call that the patch takes for a capture runs at once, gate, both kernels and compare, which is
what a replay does on a GPU. That a GPU really replays it is for a machine with one to show."""
import pytest

from patch_rig import PREAMBLE, SHOW, Rig, ask
from kdtree_patch import stats_format as f

# Needs `facts`, and torch, Scene, PATCH, f, json, os, sys imported. step() runs two layers of one verify step.
SETUP = """
import kdtree_kernel
import sglang.srt.model_executor.runner_utils.capture_mode as capture_mode
PATCH.ready()
graphs = PATCH.graphs
capturing = False
graphs._capturing = lambda q: capturing
facts["wanted_on_cpu"] = graphs.wanted(torch.zeros(1))
graphs.wanted = lambda q: True  # q is on the CPU: as if it were a GPU's
calls = getattr(kdtree_kernel, "calls", [])

def step(scene):
    calls.clear()
    scene.batch._attn_output = torch.full((len(scene.q), 2 * 512), float("nan"), dtype=torch.float16)
    errors = []
    for layer in range(2):
        scene.layer.layer_id = layer
        errors.append(scene.error())
    return [max(errors), list(calls)]

def counts():
    PATCH._publish()
    found = read_stats(PATCH._writer.path)
    return {name: found[name] for name in ("calls_kernel", "calls_engine", "compares", "mismatches", "graphs", "mode")} | {
        "backs": [i for i in range(32) if found["handed_back"][i]], "state": found["patch_state"]}
"""

WALK = """
scene = Scene()
capturing = True
facts["capture_without_warm_up"] = step(scene)
facts["after_it"] = counts()
PATCH.counters.handed_back = [0] * 32

capturing, capture_mode.is_capture_mode = False, True
PATCH.set_mode(f.ON)
facts["warm_up"] = step(scene)
entry = list(graphs._entries.values())[0]
facts["word_in_capture_mode"] = entry.word[:4].tolist()
capturing = True
facts["capture"] = step(scene)
facts["steps_in_capture"] = entry.steps()
capture_mode.is_capture_mode = False
for mode in (f.OFF, f.VALIDATE, f.ON, f.OFF, f.ON):
    PATCH.set_mode(mode)
    facts[f"replay {mode}"] = step(scene)
facts["counts"] = counts()
"""

FAULTS = """
PATCH.set_mode(f.ON)
os.environ["STAND_IN_FAULT"] = "prefix_only"
facts["fault_on"] = step(scene)[0]
PATCH.set_mode(f.VALIDATE)
facts["fault_validate"] = step(scene)[0]
facts["fault_counts"] = counts()
os.environ["STAND_IN_FAULT"] = ""

# another batch size, whose capture breaks
other = Scene(batch=1)
capturing, capture_mode.is_capture_mode = False, True
step(other)
capturing = True
os.environ["STAND_IN_FAULT"] = "raises"
facts["broken_capture"] = step(other)[0]
os.environ["STAND_IN_FAULT"] = ""
capture_mode.is_capture_mode = False
PATCH.set_mode(f.ON)
facts["words"] = [e.word[0].item() for e in graphs._entries.values()]
facts["broken"] = [e.broken for e in graphs._entries.values()]

# a third, whose gate fails once, in the capture
third = Scene(batch=3)
capturing, capture_mode.is_capture_mode = False, True
PATCH.kernel_answered()
step(third)
capturing = True
gate = graphs._kernel.gate

def planted(*args):
    graphs._kernel.gate = gate
    raise RuntimeError("planted")

graphs._kernel.gate = planted
facts["gate_failed"] = step(third)[0]
capture_mode.is_capture_mode = False
entry = list(graphs._entries.values())[-1]
facts["gate_failed_entry"] = [entry.broken, entry.layers, PATCH.state]
PATCH.refuse("enough")
facts["words_after_refusal"] = [e.word[0].item() for e in graphs._entries.values()]
from kdtree_patch.control import pack_control
with open(os.environ["KDTREE_CONTROL"], "wb") as file:
    file.write(pack_control(f.ON, 5))
PATCH._follow()
facts["words_after_follow"] = [e.word[0].item() for e in graphs._entries.values()]
"""


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict:
    rig = Rig(tmp_path_factory.mktemp("graphs"))
    return ask(rig, PREAMBLE + SETUP + WALK + FAULTS + SHOW)


def test_cpu_calls_belong_to_no_graph(facts: dict) -> None:
    assert facts["wanted_on_cpu"] is False


def test_a_capture_that_was_not_warmed_up_hands_back(facts: dict) -> None:
    error, calls = facts["capture_without_warm_up"]
    assert error < 2e-3 and calls == []
    assert facts["after_it"]["backs"] == [f.BACK_WORKSPACE]


def test_while_the_engine_captures_the_engine_answers(facts: dict) -> None:
    assert facts["word_in_capture_mode"] == [f.OFF, 0, 0, 0]
    for name in ("warm_up", "capture"):
        error, calls = facts[name]
        assert error < 2e-3
        assert calls == ["gate"] + ["verify_attn", "compare"] * 2, "one gate a step, both kernels in each layer"
    assert facts["steps_in_capture"] == [1, 0, 0], "the warm-up is taken out"


@pytest.mark.parametrize("mode", [f.OFF, f.VALIDATE, f.ON])
def test_the_word_decides_who_answers(facts: dict, mode: int) -> None:
    """The output buffer is NaN before each layer: somebody must have written all of it."""
    assert facts[f"replay {mode}"][0] < 2e-3


def test_replays_are_counted_by_the_gate(facts: dict) -> None:
    found = facts["counts"]
    assert (found["calls_kernel"], found["calls_engine"]) == (2 * 2, 3 * 2 + 2), "two layers a step; one step captured"
    assert (found["compares"], found["mismatches"], found["graphs"], found["backs"]) == (2, 0, 1, [])


def test_a_fault_shows_in_on_and_is_caught_in_validate(facts: dict) -> None:
    assert facts["fault_on"] > 0.05
    assert facts["fault_validate"] < 2e-3
    assert facts["fault_counts"]["mismatches"] == 2


def test_a_broken_capture_stays_with_the_engine_and_so_does_a_refusal(facts: dict) -> None:
    assert facts["broken_capture"] < 2e-3
    assert facts["broken"] == [False, True]
    assert facts["words"] == [f.ON, f.OFF]
    assert facts["words_after_refusal"] == [f.OFF] * 3
    assert facts["words_after_follow"] == [f.OFF] * 3


def test_a_gate_that_fails_in_a_capture_leaves_the_whole_step_to_the_engine(facts: dict) -> None:
    assert facts["gate_failed"] < 2e-3, "the layers behind the failed gate must not read index arrays that nothing fills"
    assert facts["gate_failed_entry"] == [True, 0, f.ACTIVE]
