# SPDX-License-Identifier: Apache-2.0
"""What kdtreectl refuses on a real host, each in one line with what to do, and nothing changed."""

from __future__ import annotations

import contextlib
from typing import Iterator

import pytest

from kdtree_host import COMMAND, ENGINE, PYTHON, UNIT_PATH, KdtreeHost, engine_unit

USAGE, REFUSED, LOCKED = 2, 3, 6
TOUCHED = ("/etc", "/opt", "/var/lib/kdtree")


@pytest.fixture(scope="module")
def quiet(package_layer):
    """Package and engine, running; shared, because nothing here may change it."""
    with KdtreeHost([package_layer]) as machine:
        machine.configure()
        machine.install_engine()
        yield machine


@contextlib.contextmanager
def unchanged(host: KdtreeHost, *folders: str) -> Iterator[None]:
    """Fails if files, the unit, or the running engine are not as before, and names what is not."""
    folders = folders or TOUCHED
    files, engine = host.tree(*folders), host.engine("InvocationID", "ExecStart", "Environment", "DropInPaths")
    yield
    now = host.tree(*folders)
    assert [path for path in sorted(files.keys() | now.keys()) if files.get(path) != now.get(path)] == []
    assert host.engine("InvocationID", "ExecStart", "Environment", "DropInPaths") == engine


def refusal(done, code: int, *words: str) -> None:
    """One line on stderr (progress before it aside), starting with kdtreectl:, that holds `words`."""
    last = done.err.strip().splitlines()[-1] if done.err.strip() else ""
    assert done.rc == code, (done.rc, done.out, done.err)
    assert last.startswith("kdtreectl: ") and all(word in last for word in words), done.err
    assert done.out == ""


@pytest.mark.parametrize("text, words", [
    ('{"engine": {"unit": "sglang.service", "python": "/usr/bin/python3", "helth_url": "http://127.0.0.1/", "ranks": 8}}', ("engine.helth_url", "engine.health_url")),
    ('{"engine": ', ("/etc/kdtree/kdtree.json",)),
    ('{"engine": {"unit": "sglang.service", "python": "/usr/bin/python3", "health_url": "http://127.0.0.1:1/", "ranks": 0}}',
     ("engine.ranks",)),
])
def test_a_wrong_configuration_is_a_usage_error(quiet, text, words):
    with unchanged(quiet):
        kept = quiet.read("/etc/kdtree/kdtree.json")
        quiet.write("/etc/kdtree/kdtree.json", text)
        try:
            refusal(quiet.ctl("deploy", "--yes"), USAGE, *words)
        finally:
            quiet.write("/etc/kdtree/kdtree.json", kept)


def test_no_configuration_says_where_it_goes(quiet):
    kept = quiet.read("/etc/kdtree/kdtree.json")
    quiet.path("/etc/kdtree/kdtree.json").unlink()
    try:
        refusal(quiet.ctl("deploy", "--yes"), USAGE, "/etc/kdtree/kdtree.json")
    finally:
        quiet.write("/etc/kdtree/kdtree.json", kept)


def test_a_configuration_that_others_can_write_is_refused(quiet):
    quiet.path("/etc/kdtree/kdtree.json").chmod(0o666)
    try:
        refusal(quiet.ctl("deploy", "--yes"), USAGE, "/etc/kdtree/kdtree.json")
    finally:
        quiet.path("/etc/kdtree/kdtree.json").chmod(0o644)


def test_a_unit_that_does_not_exist(quiet):
    quiet.configure(engine={"unit": "sglnag.service"})
    try:
        with unchanged(quiet):
            refusal(quiet.ctl("deploy", "--yes"), REFUSED, "sglnag.service")
    finally:
        quiet.configure()


@pytest.mark.parametrize("verb", [["deploy", "--yes"], ["mode", "validate", "--yes"], ["rollback", "--yes"], ["uninstall", "--yes"]])
def test_changes_need_root(quiet, verb):
    with unchanged(quiet):
        refusal(quiet.ctl(*verb, user="sglang"), REFUSED, "root")


def test_a_python_that_does_not_exist(quiet):
    quiet.configure(engine={"python": "/opt/nothing/bin/python3"})
    try:
        with unchanged(quiet):
            refusal(quiet.ctl("deploy", "--yes", "--accept-engine"), REFUSED, "/opt/nothing/bin/python3")
    finally:
        quiet.configure()


def test_an_unknown_engine_is_refused_with_the_difference(quiet):
    with unchanged(quiet):
        done = quiet.ctl("deploy", "--yes")
        refusal(done, REFUSED, "--accept-engine")


def test_no_nvcc_and_no_gpu_proof_for_a_cuda_kernel(quiet):
    quiet.configure(kernel={"device": "cuda"})
    try:
        with unchanged(quiet):
            refusal(quiet.ctl("deploy", "--yes", "--accept-engine"), REFUSED, "no nvcc found, looked for /usr/local/cuda/bin/nvcc",
                    "nvidia-cuda-nvcc into the engine's own Python", "kernel.cuda_home")
    finally:
        quiet.configure()


def test_nvcc_is_looked_for_in_the_configuration_then_cuda_home_path_and_the_engines_python(quiet):
    """doctor names the one that deploy would take."""
    site = f"{ENGINE}/light/lib/python3.11/site-packages"
    places = {"/opt/a/bin/nvcc": "13.1", "/opt/b/bin/nvcc": "13.2", "/usr/local/bin/nvcc": "13.3", "/opt/site/nvidia/cu13/bin/nvcc": "13.4"}
    for path, version in places.items():
        quiet.write(path, f"#!/bin/sh\necho 'Cuda compilation tools, release {version}, V{version}.0'\n", mode=0o755)
    quiet.run(["mount", "-t", "overlay", "-o", f"lowerdir=/opt/site:{site}", "overlay", site]).check()
    try:
        for changes, env, version, path in (({"cuda_home": "/opt/a"}, {"CUDA_HOME": "/opt/b"}, "13.1", "/opt/a/bin/nvcc"),
                                            ({}, {"CUDA_HOME": "/opt/b"}, "13.2", "/opt/b/bin/nvcc"),
                                            ({}, {}, "13.3", "/usr/local/bin/nvcc"),
                                            ({}, {"PATH": "/usr/sbin:/usr/bin"}, "13.4", f"{site}/nvidia/cu13/bin/nvcc")):
            quiet.configure(kernel={"device": "cuda", **changes})
            said = quiet.ctl("doctor", env=env).out
            assert f"{version}, {path}" in said, said
    finally:
        quiet.run(["umount", site]).check()
        quiet.run(["rm", "-r", "/opt/a", "/opt/b", "/opt/site", "/usr/local/bin/nvcc"]).check()
        quiet.configure()


def test_architectures_that_leave_out_a_gpu_of_this_host(quiet):
    quiet.configure(kernel={"device": "cuda", "archs": ["75"]})
    try:
        with unchanged(quiet):
            refusal(quiet.ctl("deploy", "--yes", "--accept-engine"), REFUSED, "kernel.archs", "sm_120")
    finally:
        quiet.configure()


@pytest.mark.parametrize("command, words", [
    (f"/bin/sh -c 'exec {COMMAND}'", ("the shell '",)),
    ("/usr/bin/env docker run --gpus all lmsysorg/sglang python3 -m sglang.launch_server", ("docker",)),
])
def test_an_engine_command_that_cannot_be_understood(quiet, command, words):
    kept = quiet.read(UNIT_PATH)
    quiet.write(UNIT_PATH, engine_unit(command))
    quiet.systemctl("daemon-reload").check()
    try:
        with unchanged(quiet):
            refusal(quiet.ctl("deploy", "--yes", "--accept-engine"), REFUSED, *words)
    finally:
        quiet.write(UNIT_PATH, kept)
        quiet.systemctl("daemon-reload").check()


def test_nothing_deployed_nothing_to_switch(quiet):
    for verb in (["mode", "validate", "--yes"], ["rollback", "--yes"]):
        with unchanged(quiet):
            refusal(quiet.ctl(*verb), REFUSED, "deploy")


def test_a_verb_or_flag_that_does_not_exist(quiet):
    for args in (["deplyo"], ["deploy", "--ja"], ["mode", "onn"], []):
        assert quiet.ctl(*args).rc == USAGE, args


def test_a_full_disk_leaves_nothing_half_written(quiet):
    quiet.path("/opt/kdtree").mkdir()
    quiet.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", "/opt/kdtree"]).check()
    try:
        with unchanged(quiet):
            done = quiet.ctl("deploy", "--yes", "--accept-engine")
            refusal(done, REFUSED, "/opt/kdtree")
    finally:
        quiet.run(["umount", "/opt/kdtree"]).check()
        quiet.path("/opt/kdtree").rmdir()


def test_a_disk_that_fills_up_while_the_release_is_built(quiet):
    """Space enough at first; cmake's wrapper then takes all of it."""
    quiet.path("/opt/kdtree").mkdir()
    quiet.run(["mount", "-t", "tmpfs", "-o", "size=128m,mode=0755", "tmpfs", "/opt/kdtree"]).check()
    quiet.run(["install", "-o", "sglang", "/dev/null", "/opt/kdtree/fill"]).check()
    quiet.write("/usr/local/bin/cmake", "#!/bin/sh\ndd if=/dev/zero of=/opt/kdtree/fill bs=1M 2>/dev/null\nexec /usr/bin/cmake \"$@\"\n", mode=0o755)
    try:
        with unchanged(quiet, "/etc"):
            refusal(quiet.ctl("deploy", "--yes", "--accept-engine"), REFUSED, "no space left to build the kernel (configure)",
                    "free space on the filesystem of /opt/kdtree/releases")
        left = quiet.run(["find", "/opt/kdtree", "-mindepth", "1", "-printf", "%P\\n"]).out.split()
        assert set(left) <= {"fill", "releases"}, left
        assert quiet.run(["ls", "/var/lib/kdtree"]).out == "build-failed.log\n", "nothing was begun"
    finally:
        quiet.run(["umount", "/opt/kdtree"]).check()
        quiet.path("/opt/kdtree").rmdir()
        quiet.run(["rm", "-r", "/usr/local/bin/cmake", "/var/lib/kdtree"]).check()


def test_an_nvcc_that_is_too_old(quiet):
    quiet.write("/opt/a/bin/nvcc", "#!/bin/sh\necho 'Cuda compilation tools, release 12.4, V12.4.1'\n", mode=0o755)
    quiet.configure(kernel={"device": "cuda", "cuda_home": "/opt/a"})
    try:
        with unchanged(quiet):
            refusal(quiet.ctl("deploy", "--yes", "--accept-engine"), REFUSED, "/opt/a/bin/nvcc is version 12.4, 12.8 or newer is needed", "kernel.cuda_home")
            doctor = quiet.ctl("doctor")
            assert doctor.rc == 1 and "/opt/a/bin/nvcc is version 12.4, 12.8 or newer is needed" in doctor.out
        quiet.configure(kernel={"device": "cuda"})
        with unchanged(quiet):
            quiet.write("/usr/local/bin/nvcc", "#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V13.0.1'\n", mode=0o755)
            assert "13.0, /usr/local/bin/nvcc" in quiet.ctl("doctor", env={"CUDA_HOME": "/opt/a"}).out, "an old one hides no good one"
    finally:
        quiet.run(["rm", "-rf", "/opt/a", "/usr/local/bin/nvcc"]).check()
        quiet.configure()


def test_a_second_kdtreectl_is_told_who_is_at_work(quiet):
    holder = ("import fcntl, os, sys\nf = open('/run/kdtree/lock', 'a+')\nfcntl.flock(f, fcntl.LOCK_EX)\n"
              "print('held', flush=True)\nsys.stdin.read()\n")
    job = quiet.start(["/usr/bin/python3", "-c", holder], stdin=-1)
    try:
        assert job.stdout.readline() == "held\n"
        with unchanged(quiet):
            refusal(quiet.ctl("deploy", "--yes", "--accept-engine"), LOCKED, "kdtreectl")
    finally:
        job.kill()
        job.communicate()


def test_root_runs_no_python_that_others_can_change(quiet):
    """An engine that runs as root, with an interpreter in a folder of somebody else."""
    kept = quiet.read(UNIT_PATH)
    quiet.write(UNIT_PATH, engine_unit(user="root"))
    quiet.systemctl("daemon-reload").check()
    quiet.run(["install", "-d", "-o", "sglang", "/opt/loose"]).check()
    quiet.run(["ln", "-s", PYTHON, "/opt/loose/python3"]).check()
    quiet.configure(engine={"python": "/opt/loose/python3"})
    try:
        with unchanged(quiet):
            refusal(quiet.ctl("deploy", "--yes", "--accept-engine"), REFUSED, "(through /opt/loose) belongs to sglang")
    finally:
        quiet.run(["rm", "-r", "/opt/loose"]).check()
        quiet.configure()
        quiet.write(UNIT_PATH, kept)
        quiet.systemctl("daemon-reload").check()


def test_an_engine_that_is_patched_by_hand(quiet):
    kept = quiet.read(UNIT_PATH)
    quiet.write("/opt/hand/sitecustomize.py", "import sglang.srt.layers.attention.triton_backend\n")
    quiet.write(UNIT_PATH, engine_unit(service="Environment=PYTHONPATH=/opt/hand KDTREE_VERIFY=on"))
    quiet.systemctl("daemon-reload").check()
    try:
        with unchanged(quiet):
            refusal(quiet.ctl("deploy", "--yes", "--accept-engine"), REFUSED, "/opt/hand/sitecustomize.py", "by hand")
            doctor = quiet.ctl("doctor")
            assert doctor.rc == 1 and "/opt/hand/sitecustomize.py patches the engine by hand" in doctor.out
            assert f"{UNIT_PATH} sets KDTREE_ variables by hand" in doctor.out
    finally:
        quiet.run(["rm", "-r", "/opt/hand"]).check()
        quiet.write(UNIT_PATH, kept)
        quiet.systemctl("daemon-reload").check()
