# SPDX-License-Identifier: Apache-2.0
"""Python's stats writer against kdtree's C++ reader, and the C++ control writer against Python's reader."""
import json
import math
import os
import subprocess
from array import array
from pathlib import Path

import pytest

from kdtree_patch import control
from kdtree_patch import stats_format as f
from kdtree_patch.stats import StatsWriter, read_stats
from patch_rig import HERE, LightRig

ROOT = HERE.parent.parent


@pytest.fixture(scope="module")
def formats() -> Path:
    program = Path(os.environ.get("KDTREE_BUILD", ROOT / "build" / "gpu")) / "tests" / "patch" / "kdtree_formats"
    if not program.exists():
        pytest.skip(f"no {program}: build it, or name the build folder in KDTREE_BUILD")
    return program


def read(formats: Path, folder: Path) -> list[dict]:
    done = subprocess.run([formats, "read", folder], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def same(python: object, cpp: object) -> bool:
    """-1 and NaN in the file are null in C++."""
    if cpp is None:
        return python == -1 or (isinstance(python, float) and math.isnan(python))
    return list(python) == cpp if isinstance(python, tuple) else python == cpp


def test_a_first_publication(formats: Path, tmp_path: Path) -> None:
    writer = StatsWriter(str(tmp_path))
    writer.publish({})
    (file,) = read(formats, tmp_path)
    assert file["outcome"] == "ok", file
    ours, theirs = read_stats(writer.path), file["stats"]
    assert theirs["pid"] == os.getpid() and theirs["tp_rank"] is None and theirs["max_ulp"] is None
    assert "moe" not in theirs and "batches" not in theirs
    for name in theirs.keys() - {"updated_ns"}:
        assert same(ours[name], theirs[name]), name


def test_every_field_comes_over(formats: Path, tmp_path: Path) -> None:
    writer = StatsWriter(str(tmp_path))
    numbers = iter(range(100, 1000))
    values: dict[str, object] = {}
    for name, form in f.FIELDS[12:]:
        if name in ("batch_count", "section_count") or name.startswith("moe_") and not name.startswith("moe_ep"):
            continue
        values[name] = (list(range(32)) if name == "handed_back" else f"{name} ä" if form.endswith("s") else
                        float(next(numbers)) if form == "d" else next(numbers))
    values.update(tp_rank=5, tp_size=8, moe_ep_rank=5, moe_ep_size=8, patch_state=f.ACTIVE, mode=f.ON, sort_state=1,
                  graphs=1, start_mode=f.VALIDATE, kv_contiguous_pairs=1)
    values.update(moe_layers=2, moe_experts=3, moe_top_k=2, moe_first_layer=7, moe_steps=11, moe_tokens=99)
    sections = [(f.SECTION_EXPERT_TOKENS, 2, 3, array("Q", range(6))), (f.SECTION_UNIQUE_EXPERTS, 2, 1, array("Q", [6, 7])),
                (f.SECTION_LAYER_STEPS, 2, 1, array("Q", [8, 9])), (f.SECTION_IDLE_RANKS, 2, 8, array("Q", range(16))),
                (f.SECTION_PEAKS, 2, 1, array("Q", [3, 4])), (f.SECTION_STRAGGLERS, 2, 8, array("Q", range(16, 32))),
                (f.SECTION_PASS_ROWS, 16, 2, array("Q", [9, 11] + [0] * 30))]
    writer.publish(values, {1: (10, 11), 16: (20, 20)}, sections)
    (file,) = read(formats, tmp_path)
    assert file["outcome"] == "ok", file
    ours, theirs = read_stats(writer.path), file["stats"]
    for name in theirs.keys() - {"updated_ns", "moe", "batches", "graphs"}:
        assert same(ours[name], theirs[name]), name
        assert name not in values or same(tuple(values[name]) if isinstance(values[name], list) else values[name],
                                          theirs[name]), name
    assert theirs["updated_ns"] == ours["updated_boottime_ns"] and theirs["graphs"] is True
    assert theirs["batches"] == {"1": [10, 11], "16": [20, 20]}
    assert theirs["moe"] == {"layers": 2, "experts": 3, "top_k": 2, "first_layer": 7, "steps": 11, "tokens": 99,
                             "expert_tokens": list(range(6)), "unique_experts": [6, 7], "layer_steps": [8, 9],
                             "idle_ranks": list(range(16)), "step_ranks": 8, "peaks": [3, 4],
                             "stragglers": list(range(16, 32)), "pass_rows": [9, 11] + [0] * 30}


def test_a_live_engine_and_what_is_left_of_a_killed_one(formats: Path, light: LightRig) -> None:
    code = f"""
import sys; sys.path.insert(0, {str(HERE)!r})
from light_scene import *
scene = Scene(rank=1)
scene.call()
show(stats=stats())
sys.stdin.read()
"""
    process = subprocess.Popen([light.interpreter, "-c", code], env=light.environ(KDTREE_VERIFY="on"), text=True,
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    process.stdout.readline()
    (file,) = read(formats, light.stats)
    assert file["outcome"] == "ok", file
    assert (file["stats"]["tp_rank"], file["stats"]["calls_kernel"], file["stats"]["mode"]) == (1, 1, f.ON)
    process.kill()
    process.communicate()
    (file,) = read(formats, light.stats)
    assert file["outcome"] == "dead" and "stats" not in file


@pytest.mark.parametrize("mode", sorted(f.MODES))
@pytest.mark.parametrize("release", ["", "r" * 63])
def test_what_kdtreectl_writes_is_obeyed(formats: Path, tmp_path: Path, mode: str, release: str) -> None:
    (tmp_path / "run" / "kdtree").mkdir(parents=True)
    path = tmp_path / "run" / "kdtree" / "control"
    seen = []
    for _ in range(2):
        done = subprocess.run([formats, "write", tmp_path, mode, release], check=True, capture_output=True, text=True)
        found = control.read_control(str(path))
        assert (found.mode, found.release_id, found.generation) == (f.MODES[mode], release, int(done.stdout))
        seen.append(found.generation)
    assert seen[1] > seen[0]
