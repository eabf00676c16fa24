# SPDX-License-Identifier: Apache-2.0
"""An armed worker follows the control file; what can't be obeyed is said and changes nothing."""
import json
import os
import subprocess

import pytest

from light_process import CODE
from patch_rig import LightRig
from kdtree_patch import stats_format as f
from kdtree_patch.control import pack_control

LIVE = CODE + """
scene = Scene()
scene.call()
for line in sys.stdin:
    want = json.loads(line)
    found = stats(3.0, lambda s: all(s[k] == v for k, v in want.items()))
    scene.call()
    show(stats=found)
""".replace("for line", "import json\nfor line")


class Live:
    """An engine process that makes a call and shows its stats each time it is asked."""

    def __init__(self, light: LightRig, **changes: str | None):
        self.process = subprocess.Popen([light.interpreter, "-c", LIVE], env=light.environ(**changes), text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def wait_for(self, **fields: object) -> dict:
        self.process.stdin.write(json.dumps(fields) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())["stats"]

    def __enter__(self) -> "Live":
        return self

    def __exit__(self, *error: object) -> None:
        self.process.communicate(timeout=30)


def test_an_armed_worker_follows_the_control_file(light: LightRig) -> None:
    with Live(light, KDTREE_VERIFY="off") as live:
        found = live.wait_for(mode=f.OFF)
        assert (found["mode"], found["control_generation"], found["calls_engine"]) == (f.OFF, 0, 1)
        light.write_control(f.VALIDATE, 5)
        found = live.wait_for(mode=f.VALIDATE)
        assert (found["mode"], found["control_generation"]) == (f.VALIDATE, 5)
        light.write_control(f.ON, 6, "r1")
        found = live.wait_for(mode=f.ON)
        assert (found["mode"], found["control_generation"], found["compares"]) == (f.ON, 6, 1)
        light.control.unlink()
        found = live.wait_for(calls_kernel=1)
        assert (found["mode"], found["calls_kernel"], found["control_generation"]) == (f.ON, 1, 6)


def test_the_control_file_holds_over_the_environment_at_start(light: LightRig) -> None:
    light.write_control(f.OFF, 9)
    with Live(light, KDTREE_VERIFY="on") as live:
        found = live.wait_for(control_generation=9)
        assert (found["mode"], found["calls_kernel"], found["calls_engine"]) == (f.OFF, 0, 1)


@pytest.mark.parametrize("spoil, said", [
    (lambda path, raw: path.write_bytes(raw[:50]), "50 bytes"),
    (lambda path, raw: path.write_bytes(raw[:60] + b"x" + raw[61:]), "checksum"),
    (lambda path, raw: (path.write_bytes(raw), path.chmod(0o666)), "writable by others"),
    (lambda path, raw: (path.with_suffix(".real").write_bytes(raw), path.symlink_to(path.with_suffix(".real"))),
     "control file"),
    (lambda path, raw: os.mkfifo(path, 0o644), "not a regular file"),
    (lambda path, raw: path.write_bytes(pack_control(f.ON, 3, "other")), "for release other, this is r1")])
def test_a_control_file_that_isnt_obeyed_is_said_and_changes_nothing(light: LightRig, spoil, said: str) -> None:  # noqa: ANN001
    with Live(light, KDTREE_VERIFY="validate") as live:
        assert live.wait_for(mode=f.VALIDATE)["reason"] == ""
        spoil(light.control, pack_control(f.ON, 3))
        while said not in (found := live.wait_for())["reason"]:
            assert live.process.poll() is None
        assert (found["mode"], found["control_generation"], found["patch_state"]) == (f.VALIDATE, 0, f.ACTIVE)
        light.control.unlink()
        light.write_control(f.OFF, 4)
        found = live.wait_for(mode=f.OFF)
        assert (found["mode"], found["reason"], found["control_generation"]) == (f.OFF, "", 4)


def test_a_refused_worker_never_follows(light: LightRig) -> None:
    light.library.unlink()
    with Live(light, KDTREE_VERIFY="on") as live:
        live.wait_for(patch_state=f.REFUSED)
        light.write_control(f.ON, 2)
        found = live.wait_for()
        found = live.wait_for()
        assert (found["mode"], found["patch_state"], found["control_generation"]) == (f.OFF, f.REFUSED, 0)
