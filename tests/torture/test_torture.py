# SPDX-License-Identifier: Apache-2.0
"""A sample of `make torture`, and proof that the harness sees what it is for."""

from __future__ import annotations

import subprocess

import pytest

from campaign import Task, Tally, tasks_of, text_of
from faults import AFTER_END, Outcome, run
from kept import Kept
from package import build_folder
from torture_host import DROP_IN

SAMPLE = {"kill": 6, "eio": 3, "enospc": 2, "full": 3, "bus": 1, "reply": 2, "nobus": 1, "cut": 3}
NAME = DROP_IN.rsplit("/", 1)[1]


def stop_at(*argv: str) -> subprocess.CompletedProcess:
    return subprocess.run([build_folder() / "tests" / "torture" / "stop_at", *argv], capture_output=True, text=True)


SCRIPT = """
import mmap, os
fd = os.open("a.tmp", os.O_WRONLY | os.O_CREAT)
os.write(fd, b"x")
os.fsync(fd)
os.rename("a.tmp", "a")
os.stat("a")
open("a").read()
os.mkdir("d")
os.unlink("a")
with open("d/m", "w+b", buffering=0) as file:
    file.truncate(1)
    mmap.mmap(file.fileno(), 1, mmap.MAP_PRIVATE)
    mmap.mmap(file.fileno(), 1)
if os.fork() == 0:
    os._exit(0)
os.wait()
"""
CALLS = ["openat", "write", "fsync", "rename", "mkdir", "unlink", "openat", "ftruncate", "mmap", "clone"]


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run_script(*options: str):
        done = stop_at("--log", "log", *options, "--", "/usr/bin/python3", "-I", "-S", "-B", "-c", SCRIPT)
        lines = (tmp_path / "log").read_text().splitlines()
        return done, [line.split()[1] for line in lines if not line.startswith("hit")]

    return run_script


def test_stop_at_sees_what_changes_and_only_that(script):
    done, calls = script()
    assert done.returncode == 0 and calls == CALLS


@pytest.mark.parametrize("number, made", [(1, []), (4, ["a.tmp"]), (5, ["a"]), (6, ["a", "d"])])
def test_a_kill_comes_before_the_call(script, tmp_path, number, made):
    done, calls = script("--at", str(number), "--fault", "kill")
    assert done.returncode == 137 and calls == CALLS[:number]
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "log") == made


@pytest.mark.parametrize("fault, number, error", [("enospc", 2, "No space left"), ("eio", 3, "Input/output error"), ("full", 2, "No space left")])
def test_an_error_is_what_the_program_gets(script, fault, number, error):
    done, _ = script("--at", str(number), "--fault", fault)
    assert done.returncode == 1 and error in done.stderr


def test_outcomes_outlive_a_campaign_that_is_killed(tmp_path):
    ran = Outcome("deploy", "3 write /x", "kill", True, None, ("a rule",))
    Kept(tmp_path, "d1").add("deploy | 3 write /x | kill", ran)
    with open(tmp_path / "d1.jsonl", "a") as file:
        file.write('{"key": "deploy | 4 wr')
    assert Kept(tmp_path, "d1").outcomes == {"deploy | 3 write /x | kill": ran}
    assert Kept(tmp_path, "d2").outcomes == {} and Kept(tmp_path, "d1", forget=True).outcomes == {}


def test_stop_at_reads_what_is_asked_on_the_bus(stage):
    manager = ("org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager")
    host = stage.host
    for method, seen in (("ListJobs", []), ("Reload", ["Reload"])):
        done = host.run(["/opt/torture/stop_at", "--log", "/run/bus", "--", "busctl", "call", *manager, method])
        assert done.rc == 0, done.err
        assert [line.split()[2] for line in host.read("/run/bus").splitlines()] == seen


def test_a_sample(bench, stage, capsys):
    """Drawn from the same list as `make torture`, some of each fault."""
    left = dict(SAMPLE)
    tally = Tally()
    for task in tasks_of(stage.scenes(("deploy", "mode-live")), tuple(left), seed=7):
        if left[task.fault] == 0:
            continue
        left[task.fault] -= 1
        tally.add(task.key, bench.run(task))
    with capsys.disabled():
        print(f"\n{tally.line()}")
    assert tally.runs == sum(SAMPLE.values()) and not any(left.values())
    assert not tally.inconsistent, "\n".join(map(text_of, tally.inconsistent))


def test_a_missing_fsync_is_reported(bench, stage):
    """Planted: the drop-in's temp file isn't synced before it is renamed. The power goes when all is done."""
    scene = stage.scene("mode-live")
    whole = bench.run(Task(scene, AFTER_END, "cut"))
    assert whole.hit and not whole.broken, whole.broken
    planted = run(bench.host(with_disk=True), scene, AFTER_END, "cut", extra=("--unsynced", f"/.{NAME}.kdtree"))
    assert planted.hit and any("drop-in" in rule or DROP_IN in rule for rule in planted.broken), planted.broken


def test_a_rename_that_is_not_atomic_is_reported(stage):
    """Planted: rename() writes the target in place. Stopped between its two halves."""
    host, scene = stage.host, stage.scene("mode-live")
    scene.start.enter(host)
    points = host.traced(scene.argv, preload="rename_in_place.so").points
    second_half = [point for point in points if point.call == "write" and point.about == DROP_IN][1]
    planted = run(host, scene, second_half, "kill", preload="rename_in_place.so")
    assert planted.hit and any("neither the old nor the new" in rule for rule in planted.broken), planted.broken
