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
from sglang.srt.model_executor.runner_backend_utils.breakable_cuda_graph.context import enable_breakable_cuda_graph
from kdtree_patch import phase
PATCH.ready()
PATCH.look = lambda bound, enable=None: None  # by the clock: test_live_modes.py
graphs = PATCH.graphs
capturing = False
facts["wanted_on_cpu"] = graphs.wanted(torch.zeros(1))
# q is on the CPU: as if it were a GPU's, and what is taken for a capture were one
graphs.wanted = lambda q: phase.engine_captures() or capturing
phase.is_recording = lambda q: capturing
calls = getattr(kdtree_kernel, "calls", [])

def step(scene, layers=2, **keywords):
    # One verify step, as SGLang's graph runner makes it in warm-ups and captures. With `capturing` it is what a replay does.
    calls.clear()
    errors = []
    for layer in range(layers):
        scene.batch._attn_output = torch.full((len(scene.q), 2 * 512), float("nan"), dtype=torch.float16)
        scene.layer.layer_id = layer
        errors.append(scene.error(**keywords))
    return [max(errors), list(calls)]

def captured(scene, act=step, **keywords):
    # A warm-up and a capture; what the capture runs at once is taken for the first replay.
    global capturing
    capturing, capture_mode.is_capture_mode = False, True
    warm = act(scene, **keywords)
    capturing = True
    done = act(scene, **keywords)
    capture_mode.is_capture_mode = False
    return [warm, done]

def counts():
    PATCH._publish()
    found = read_stats(PATCH._writer.path)
    return {name: found[name] for name in ("calls_kernel", "calls_engine", "compares", "mismatches", "graphs", "mode",
                                           "reason")} | {
        "backs": {i: n for i, n in enumerate(found["handed_back"]) if n}, "state": found["patch_state"],
        "batches": sorted(found["batches"].items())}
"""

WALK = """
scene = Scene()
capturing = True
facts["capture_without_warm_up"] = step(scene)
facts["after_it"] = counts()
capturing = False

PATCH.set_mode(f.ON)
facts["warm_up"], facts["capture"] = captured(scene)
entry = list(graphs._entries.values())[0]
facts["steps_so_far"] = entry.word.steps()
facts["idle_word"] = graphs._idle.steps()
for mode in (f.OFF, f.VALIDATE, f.ON, f.OFF, f.ON):
    PATCH.set_mode(mode)
    facts[f"replay {mode}"] = step(scene)
facts["counts"] = counts()
"""

# Breakable graphs: replayed with get_is_capture_mode() true, attention run eagerly in between. Nothing is recorded then.
BREAKABLE = """
capturing = False
PATCH.set_mode(f.ON)
with enable_breakable_cuda_graph():
    assert capture_mode.get_is_capture_mode()
    facts["wanted_in_breakable_replay"] = graphs.wanted(scene.q)
    facts["breakable_replay"] = step(scene)
facts["breakable_counts"] = counts()
capturing = True
"""

# What a capture hands back is counted each time the graph runs.
HAND_BACK = """
def back(scene, layers=3, **keywords):
    calls.clear()
    real, scene.backend.extend_attention_fwd = scene.backend.extend_attention_fwd, quiet
    for layer in range(layers):
        scene.layer.layer_id = layer
        scene.call(**keywords)
    scene.backend.extend_attention_fwd = real
    return list(calls)

import functools
from sglang.kernels.ops.attention.extend_attention import extend_attention_fwd
quiet = functools.wraps(extend_attention_fwd)(lambda *a, **k: None)
before = counts()["backs"]
sinks = Scene()
facts["sinks_capture"] = captured(sinks, back, sinks=torch.zeros(2))
for _ in range(4):  # four more replays: what was captured is one tick a step
    PATCH.kernel.tick(list(graphs._tallies.values())[-1].word.tensor, sinks.q)
draft = Scene(batch=1, heads=2)
from sglang.srt.layers.radix_attention import AttentionType
draft.layer.attn_type = AttentionType.ENCODER_ONLY
facts["draft_capture"] = captured(draft, back, layers=5)
for _ in range(2):
    PATCH.kernel.tick(list(graphs._tallies.values())[-1].word.tensor, draft.q)
facts["backs"] = {i: n - before.get(i, 0) for i, n in counts()["backs"].items() if n > before.get(i, 0)}
"""

FAULTS = """
capturing = True
PATCH.set_mode(f.ON)
os.environ["STAND_IN_FAULT"] = "prefix_only"
facts["fault_on"] = step(scene)[0]
PATCH.set_mode(f.VALIDATE)
facts["fault_validate"] = step(scene)[0]
facts["fault_counts"] = counts()
os.environ["STAND_IN_FAULT"] = ""

# another batch size, whose capture breaks in its second layer
other = Scene(batch=1)
capturing, capture_mode.is_capture_mode = False, True
step(other)
capturing = True
verify, done = graphs._kernel.verify, []

def planted(*args):
    done.append(1)
    if len(done) == 2:
        raise RuntimeError("planted")
    verify(*args)

graphs._kernel.verify = planted
facts["broken_capture"] = step(other)[0]
graphs._kernel.verify = verify
capture_mode.is_capture_mode = False
PATCH.set_mode(f.ON)
broken = list(graphs._entries.values())[-1]
facts["words"] = [e.word.tensor[0].item() for e in graphs._entries.values()]
facts["broken"] = [e.broken for e in graphs._entries.values()]
for _ in range(5):  # replays: the graph holds one gate, and two layers that now are the engine's
    graphs._kernel.gate(broken.word.tensor, {"qo_indptr": broken.qo_indptr, "kv_indptr": broken.kv_indptr},
                        broken.qo_indptr.clone(), broken.kv_indptr.clone(), broken.flags)
facts["broken_counts"] = counts()

# a third, whose gate fails once, in the capture
third = Scene(batch=3)
capturing, capture_mode.is_capture_mode = False, True
facts["errors_before"] = PATCH._errors_in_a_row
step(third)
facts["errors_after_a_good_warm_up"] = PATCH._errors_in_a_row
capturing = True
gate = graphs._kernel.gate

def planted(*args):
    graphs._kernel.gate = gate
    raise RuntimeError("planted")

graphs._kernel.gate = planted
before = counts()["backs"]
facts["gate_failed"] = step(third)[0]
capture_mode.is_capture_mode = False
entry = list(graphs._entries.values())[-1]
facts["gate_failed_entry"] = [entry.broken, entry.layers, PATCH.state]
facts["gate_failed_backs"] = counts()["backs"][f.BACK_ERROR] - before[f.BACK_ERROR]
PATCH.refuse("enough")
facts["words_after_refusal"] = [e.word.tensor[0].item() for e in graphs._entries.values()]
from kdtree_patch.control import pack_control
with open(os.environ["KDTREE_CONTROL"], "wb") as file:
    file.write(pack_control(f.ON, 5))
PATCH._follow()
facts["words_after_follow"] = [e.word.tensor[0].item() for e in graphs._entries.values()]
"""

# A newer engine's kernel with keyword-only parameters, called as the engine calls it.
KEYWORD_ONLY = """
strict = Scene()
real, seen = strict.backend.extend_attention_fwd, []
PATCH.set_mode(f.VALIDATE)

def newer(q_extend, k_extend, v_extend, o_extend, k_buffer, v_buffer, qo_indptr, kv_indptr, kv_indices, custom_mask,
          is_causal, mask_indptr, max_len_extend, k_scale, v_scale, sm_scale=None, *, logit_cap=0.0,
          sliding_window_size=-1, sinks=None, window_kv_offsets=None, xai_temperature_len=-1, page_size=1, score_mod=None,
          aux_tensors=None):
    seen.append((logit_cap, page_size))
    real(q_extend, k_extend, v_extend, o_extend, k_buffer, v_buffer, qo_indptr, kv_indptr, kv_indices, custom_mask,
         is_causal, mask_indptr, max_len_extend, k_scale, v_scale, sm_scale)

strict.backend.extend_attention_fwd = newer
facts["keyword_only"] = [captured(strict), seen]
"""


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict:
    rig = Rig(tmp_path_factory.mktemp("graphs"))
    return ask(rig, PREAMBLE + SETUP + WALK + BREAKABLE + HAND_BACK + KEYWORD_ONLY + FAULTS + SHOW)


def test_cpu_calls_belong_to_no_graph(facts: dict) -> None:
    assert facts["wanted_on_cpu"] is False


def test_a_capture_that_was_not_warmed_up_hands_back(facts: dict) -> None:
    error, calls = facts["capture_without_warm_up"]
    assert error < 2e-3 and calls == []
    assert facts["after_it"]["backs"] == {}, "there was no word to count it in, and nobody was served"


def test_a_warm_up_is_answered_by_the_engine_and_counted_nowhere(facts: dict) -> None:
    """The mode is on all the while."""
    for name in ("warm_up", "capture"):
        error, calls = facts[name]
        assert error < 2e-3
        assert calls == ["gate"] + ["verify_attn", "compare"] * 2, "one gate a step, both kernels in each layer"
    assert facts["steps_so_far"] == [0, 0, 1], "the first replay"
    assert facts["idle_word"] == [1, 0, 0], "the warm-up obeyed a word that says off"


@pytest.mark.parametrize("mode", [f.OFF, f.VALIDATE, f.ON])
def test_the_word_decides_who_answers(facts: dict, mode: int) -> None:
    """The output buffer is NaN before each layer: somebody must have written all of it."""
    assert facts[f"replay {mode}"][0] < 2e-3


def test_replays_are_counted_by_the_gate(facts: dict) -> None:
    found = facts["counts"]
    assert (found["calls_kernel"], found["calls_engine"]) == (3 * 2, 3 * 2), "two layers a step"
    assert (found["compares"], found["mismatches"], found["graphs"], found["backs"]) == (2, 0, 1, {})
    assert found["batches"] == [[2, [2, 12]]], "requests in the call: compares, calls"


def test_the_replay_of_a_breakable_graph_is_no_capture(facts: dict) -> None:
    assert facts["wanted_in_breakable_replay"] is False
    error, calls = facts["breakable_replay"]
    assert error < 2e-3 and calls == ["verify_attn"] * 2, "eager, and on"
    assert facts["breakable_counts"]["calls_kernel"] == facts["counts"]["calls_kernel"] + 2


def test_what_a_capture_hands_back_is_counted_each_time_it_runs(facts: dict) -> None:
    assert facts["sinks_capture"] == [[], ["tick"]], "nothing in the warm-up, one tick a step in the graph"
    assert facts["draft_capture"] == [[], ["tick"]], "a draft model's own verify is only counted"
    assert facts["backs"] == {str(f.BACK_SINKS): 5 * 3, str(f.BACK_ATTENTION_TYPE): 3 * 5}


def test_keyword_only_parameters_are_passed_as_the_engine_passes_them(facts: dict) -> None:
    (warm, replay), seen = facts["keyword_only"]
    assert max(warm[0], replay[0]) < 2e-3 and replay[1] == ["gate"] + ["verify_attn", "compare"] * 2
    assert seen == [[0.0, 1]] * 4


def test_a_fault_shows_in_on_and_is_caught_in_validate(facts: dict) -> None:
    assert facts["fault_on"] > 0.05
    assert facts["fault_validate"] < 2e-3
    assert facts["fault_counts"]["mismatches"] == 2


def test_a_broken_capture_stays_with_the_engine_and_is_said_and_counted(facts: dict) -> None:
    assert facts["broken_capture"] < 2e-3
    assert facts["broken"] == [False, True]
    assert facts["words"] == [f.ON, f.OFF]
    before, after = facts["fault_counts"], facts["broken_counts"]
    assert after["backs"][str(f.BACK_ERROR)] == 5 * 2, "five runs of two layers"
    assert after["calls_kernel"] == before["calls_kernel"]
    served = after["calls_engine"] - before["calls_engine"]
    assert served == 1, "the layer before the fault, while the capture ran; replays are handed back, not served"
    assert dict(after["batches"]) == {**dict(before["batches"]), 1: [1, 1]}
    assert after["reason"] == "kernel: batch of 1, layer 1: planted"


def test_a_good_capture_ends_a_row_of_errors(facts: dict) -> None:
    assert (facts["errors_before"], facts["errors_after_a_good_warm_up"]) == (1, 0)


def test_a_gate_that_fails_in_a_capture_leaves_the_whole_step_to_the_engine(facts: dict) -> None:
    assert facts["gate_failed"] < 2e-3, "the layers behind the failed gate must not read index arrays that nothing fills"
    assert facts["gate_failed_entry"] == [True, 0, f.ACTIVE]
    assert facts["gate_failed_backs"] == 2, "counted by a tick, since there is no gate"


def test_a_refusal_turns_every_word_off_for_good(facts: dict) -> None:
    assert facts["words_after_refusal"] == [f.OFF] * 3
    assert facts["words_after_follow"] == [f.OFF] * 3
