# SPDX-License-Identifier: Apache-2.0
"""Passive, active: with the light engine's processes. Refused is test_refused.py's, numbers are test_verify.py's."""
import json

import pytest

from light_process import CODE, SERVE, serve
from patch_rig import LightRig, light_engine
from kdtree_patch import stats_format as f
from kdtree_patch.env import environment_digest
from kdtree_patch.stats import read_stats


def test_active_and_armed(light: LightRig) -> None:
    found, facts, stderr = serve(light, KDTREE_VERIFY="validate")
    assert (found["patch_state"], found["mode"], found["reason"], stderr) == (f.ACTIVE, f.VALIDATE, "", "")
    assert (found["tp_rank"], found["tp_size"], found["moe_ep_rank"], found["moe_ep_size"]) == (0, 2, 0, 2)
    assert (found["release_id"], found["torch_version"], found["device_name"]) == ("r1", "2.11.0+light", "cpu")
    assert found["engine_version"] == "0.5.17+light" and found["engine_fingerprint"] == light_engine().fingerprint
    assert found["library_sha256"] == light.manifest["files"]["lib/libkdtree_torch.so"]
    assert found["environment_sha256"] == environment_digest(light.environ(KDTREE_VERIFY="validate"))
    assert (found["calls_engine"], found["calls_kernel"], found["compares"], found["mismatches"]) == (1, 0, 1, 0)
    assert (found["graphs"], found["longest_prefix"], found["batches"]) == (0, 6, {"1": [1, 1]})
    assert found["start_mode"] == f.VALIDATE
    assert light.stats_files() == [], "a process that ends takes its file away"


@pytest.mark.parametrize("mode, kernel, engine, compares",
                         [("off", 0, 1, 0), ("validate", 0, 1, 1), ("on", 1, 0, 0)])
def test_modes(light: LightRig, mode: str, kernel: int, engine: int, compares: int) -> None:
    found, facts, _ = serve(light, KDTREE_VERIFY=mode)
    assert (found["calls_kernel"], found["calls_engine"], found["compares"]) == (kernel, engine, compares)
    assert sum(found["handed_back"]) == 0
    plain = light.run(SERVE, KDTREE_VERIFY=None)
    assert facts["out"] == json.loads(plain.stdout)["out"]


def test_a_launcher_is_passive_and_no_rank(light: LightRig) -> None:
    found, _, stderr = serve(light, CODE + "show(stats=stats())", KDTREE_VERIFY="on")
    assert (found["patch_state"], found["mode"], found["tp_rank"], stderr) == (f.PASSIVE, f.OFF, -1, "")
    assert "no attention backend" in found["reason"]


def test_a_draft_backend_alone_makes_no_rank(light: LightRig) -> None:
    code = CODE + """
from kdtree_patch.patch import PATCH
scene = Scene(draft=True)
scene.call()
show(stats=stats())
"""
    found, _, _ = serve(light, code, KDTREE_VERIFY="on", KDTREE_DEFRAG_SORT="0")
    assert found["handed_back"][f.BACK_ATTENTION_TYPE] == 1 and found["calls_kernel"] == 0


def test_reading_our_own_file(light: LightRig) -> None:
    """The reader that these tests use tells a live file from none."""
    assert light.stats_files() == []
    with pytest.raises(Exception, match="No such file"):
        read_stats(str(light.stats / "1.stats"))
