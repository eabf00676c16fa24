# SPDX-License-Identifier: Apache-2.0
"""Each planted fault is caught by validate and named, under what stands for a CUDA graph here (test_graphs.py). The same
plugin plants them in a real server on a GPU."""
import json
from pathlib import Path

import pytest

from kdtree_patch import stats_format as f
from patch_rig import HERE, PREAMBLE, SHOW, Rig, ask
from test_graphs import SETUP

PLANTED = HERE / "planted"
PLANT = f"""
sys.path.insert(0, {str(PLANTED)!r})
import kdtree_planted
kdtree_planted.install()
assert PATCH.kernel is None or True
"""

# Two layers of two requests; validate. The warm-up of each batch size, its capture, then three replays.
SERVE = """
from kdtree_patch.control import pack_control
PATCH.set_mode(f.VALIDATE)
for batch in (2, 1):
    scene = Scene(batch=batch, prefix=PREFIX)
    scene.layer.layer_id = 0
    captured(scene)
    for _ in range(3):
        facts.setdefault("errors", []).append(step(scene)[0])
PATCH._publish()
found = read_stats(PATCH._writer.path)
facts["stats"] = {k: found[k] for k in ("compares", "mismatches", "max_ulp", "worst_layer", "worst_request", "worst_batch",
                                        "worst_head", "worst_prefix", "handed_back", "reason", "patch_state")}
facts["stats"]["batches"] = sorted(found["batches"].items())
"""


def validated(tmp_path: Path, fault: str, prefix: int = 20) -> dict:
    """The stats of a rank that validated with that fault; the engine's answers stayed right."""
    code = PREAMBLE + PLANT + SETUP + f"PREFIX = {prefix}\n" + SERVE + SHOW
    facts = ask(Rig(tmp_path), code, KDTREE_PLANT=fault)
    assert max(facts["errors"]) < 2e-3, "validate returns the engine's answer"
    return facts["stats"]


def worst(found: dict) -> list[int]:
    return [found[f"worst_{name}"] for name in ("layer", "request", "batch", "head", "prefix")]


def test_one_head_of_one_request_in_one_layer_off_by_8_ulp(tmp_path: Path) -> None:
    found = validated(tmp_path, "ulp:layer=1,request=1,head=0,beyond=16,ulps=8")
    assert worst(found) == [1, 1, 2, 0, 20]
    assert 6 <= found["max_ulp"] <= 10
    assert (found["compares"], found["mismatches"]) == (2 * 2 * 4, 4), "one of two layers, at one of two batch sizes"


def test_the_same_fault_behind_a_short_prefix_is_none(tmp_path: Path) -> None:
    found = validated(tmp_path, "ulp:layer=1,request=1,head=0,beyond=20,ulps=8")
    assert found["mismatches"] == 0 and found["max_ulp"] <= 4


@pytest.mark.parametrize("fault", ["prefix_only", "mask_indptr"])
def test_a_known_bug_is_a_mismatch_in_every_layer(tmp_path: Path, fault: str) -> None:
    found = validated(tmp_path, fault)
    assert found["mismatches"] >= 8 and found["max_ulp"] > 50
    assert found["worst_layer"] in (0, 1) and found["worst_batch"] in (1, 2) and found["worst_prefix"] == 20


def test_a_capture_that_lacks_our_kernel_is_a_mismatch(tmp_path: Path) -> None:
    found = validated(tmp_path, "capture_skips:batch=1")
    assert found["mismatches"] > 0 and found["worst_batch"] == 1, "its replays compare what the last one left behind"


def test_a_capture_that_raises_is_said_and_leaves_its_size_uncompared(tmp_path: Path) -> None:
    """The verdict asks for both: no call handed back for an error, no size served and never compared."""
    found = validated(tmp_path, "capture_raises:batch=1,call=2")
    assert found["reason"] == "kernel: batch of 1, layer 1: planted: this capture breaks"
    assert found["handed_back"][f.BACK_ERROR] > 0 and found["patch_state"] == f.ACTIVE
    assert found["mismatches"] == 0 and dict((b, c) for b, c in found["batches"])[2] == [8, 8]


def test_a_release_holds_nothing_of_it() -> None:
    listed = (HERE.parents[1] / "sitecustomize" / "CMakeLists.txt").read_text()
    assert "planted" not in listed and "KDTREE_PLANT" not in json.dumps(
        [p.read_text() for p in (HERE.parents[1] / "sitecustomize").rglob("*.py")])
