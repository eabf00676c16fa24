# SPDX-License-Identifier: Apache-2.0
"""The release on a GPU host: its environment is what kdtreectl writes, and its switch reaches the test engine's ranks."""
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from live_engine import load
from live_engine.release import REPOSITORY, Release, read_drop_in

sys.path.insert(0, str(REPOSITORY / "tests/engine"))


def bare_release(root: Path) -> Release:
    """One whose files nobody needs."""
    release = object.__new__(Release)
    release.root, release.run_root, release.id, release.folder = root, root, "r1", root / "opt/kdtree/releases/r1"
    release.stats, release.control = root / "run/kdtree/stats", root / "run/kdtree/control"
    release.stats.mkdir(parents=True)
    release._generation = 0
    return release


@pytest.fixture(scope="session")
def engine_unit() -> Path:
    given = os.environ.get("KDTREE_BUILD")
    for build in [Path(given)] if given else [REPOSITORY / "build/gpu", REPOSITORY / "build/dev"]:
        if (build / "tests/gpu/gpu_engine_unit").exists():
            return build / "tests/gpu/gpu_engine_unit"
    pytest.skip("gpu_engine_unit is not built: make build")


def test_environment_is_what_kdtreectl_writes(tmp_path, engine_unit):
    config, unit = tmp_path / "kdtree.json", tmp_path / "sglang.service"
    config.write_text(json.dumps({"engine": {"unit": "sglang.service", "python": "/opt/e/bin/python3", "ranks": 1,
                                             "health_url": "http://127.0.0.1:1/health"}}))
    unit.write_text("[Service]\nExecStart=/opt/e/bin/python3 -m sglang.launch_server\n")
    done = subprocess.run([engine_unit, config, unit, "r1", "validate", tmp_path / "state.json"], check=True,
                          capture_output=True, text=True)
    release = bare_release(tmp_path / "root")
    assert release.environ("validate", done.stdout) == release.environ("validate")
    assert read_drop_in(done.stdout)["KDTREE_VERIFY"] == "validate"
    assert json.loads((tmp_path / "state.json").read_text())["current"]["release"] == "r1"


def test_drop_in_is_read_as_systemd_reads_it():
    text = '[Service]\nEnvironment="A=b c"\nEnvironment=P=50%%\nExecStart=/x\n'
    assert read_drop_in(text) == {"A": "b c", "P": "50%"}


def test_two_servers_have_two_run_folders(tmp_path):
    release = bare_release(tmp_path)
    other = release.for_server("proof")
    release.write_control("on")
    assert release.control.exists() and not other.control.exists() and other.stats.is_dir()
    assert other.environ("off")["KDTREE_CONTROL"] == str(other.control)
    assert other.environ("off")["KDTREE_LIB"] == f"{tmp_path}/opt/kdtree/releases/r1/lib/libkdtree_torch.so"


@pytest.fixture(scope="module")
def light_release(tmp_path_factory):
    """The light engine's kernel, installed as test_engine_light.py does."""
    import engine_process

    folder = tmp_path_factory.mktemp("light")
    for command in (["cmake", "-S", REPOSITORY / "tests/engine/light/kernel", "-B", folder / "b",
                     f"-DKDTREE_PYTHON={engine_process.LIGHT_PYTHON}", "-DKDTREE_WITH_CUDA=OFF"],
                    ["cmake", "--build", folder / "b"],
                    ["cmake", "--install", folder / "b", "--prefix", folder / "installed"]):
        subprocess.run(list(map(str, command)), check=True, capture_output=True)
    return engine_process.Release(folder / "host", folder / "installed", engine_process.probe(str(engine_process.LIGHT_PYTHON)))


def test_switch_and_load_on_both_ranks_of_the_light_engine(light_release, tmp_path):
    import engine_process

    release = bare_release(tmp_path)
    release.stats, release.control = light_release.stats, light_release.control
    with engine_process.start(engine_process.light("--tp", "2", "--steps-per-second", "50"), tmp_path / "log",
                              light_release.environ("off")) as engine:
        engine.wait_healthy(60)
        engine_process.wait_for("two ranks", lambda: len(release.ranks()) == 2, 20)
        assert release.switch("validate", 2) < 20
        assert not release.in_force("on", 2) and release.in_force("validate", 2)
        assert [rank["tp_rank"] for rank in release.ranks()] == [0, 1]
        runs = load.together(f"http://127.0.0.1:{engine.port}", [[1, 2, 3], [4, 5]], 2000, steps=6)
        assert all(run.verifies >= 6 and len(run.ids) < 2000 for run in runs)
        assert load.step_time(runs)["ms"] > 0
