# SPDX-License-Identifier: Apache-2.0
"""What an undone change leaves of a file: everything, its owner, mode and extended attributes included. And what a kdtreectl
leaves alone that is older than what it finds."""

from __future__ import annotations

import hashlib
import json
import os

from kdtree_host import HEALTH, UNIT, UNIT_PATH, KdtreeHost

REFUSED, ROLLED_BACK = 3, 4
DROP_IN = f"{UNIT_PATH}.d/60-kdtree.conf"
STATE, JOURNAL = "/var/lib/kdtree/state.json", "/var/lib/kdtree/journal/active"
XATTRS = {"user.asset": b"rack 7", "trusted.backup": b"\x00\xffnightly"}


def image(host: KdtreeHost, path: str) -> tuple:
    file = host.path(path)
    about = file.lstat()
    return (about.st_mode, about.st_uid, about.st_gid, file.read_bytes(),
            {name: os.getxattr(file, name) for name in os.listxattr(file)})


def give_away(host: KdtreeHost, path: str) -> None:
    """To the engine's user, with a mode and attributes of its own."""
    file = host.path(path)
    uid = host.path("/var/lib/sglang").stat().st_uid
    assert uid != 0
    os.chown(file, uid, 4)
    file.chmod(0o640)
    for name, value in XATTRS.items():
        os.setxattr(file, name, value)


def test_owner_mode_and_attributes_come_back(host):
    give_away(host, DROP_IN)
    before = image(host, DROP_IN)
    assert before[4].items() >= XATTRS.items()
    host.configure(modes={"validate": {"mem_fraction_static": 0.99}})
    host.fault("oom:0.95")
    done = host.ctl("mode", "validate", "--yes")
    assert done.rc == ROLLED_BACK, done.err
    assert image(host, DROP_IN) == before


def test_they_come_back_where_the_file_was_removed(host):
    """An uninstall that breaks: the engine doesn't start without kdtree."""
    give_away(host, DROP_IN)
    before = image(host, DROP_IN)
    host.configure(deadlines={"healthy_s": 15})
    started = host.engine("InvocationID")
    job = host.start(["kdtreectl", "uninstall", "--yes"])
    host.wait("the engine is restarted without it",
              lambda: not host.path(DROP_IN).exists() and host.engine("InvocationID") not in ("", started), 60)
    pids = host.run(["pgrep", "-x", "kdtreectl"]).check().out.split()
    host.run(["kill", "-KILL", *pids]).check()
    job.communicate()
    done = host.ctl("recover")
    assert done.rc == 0, done.err
    assert image(host, DROP_IN) == before
    assert host.http(HEALTH)[0] == 200 and host.environment()["KDTREE_VERIFY"] == "off"


def newer(text: str) -> str:
    return json.dumps({**json.loads(text), "format": 99})


def test_a_state_of_a_newer_kdtreectl_is_left_alone(host):
    host.write(STATE, newer(host.read(STATE)), 0o600)
    before, engine = host.tree("/etc", "/opt", "/var/lib/kdtree"), host.engine("InvocationID")
    for verb in (["deploy", "--accept-engine"], ["mode", "validate"], ["rollback"], ["uninstall"]):
        done = host.ctl(*verb, "--yes")
        assert done.rc == REFUSED and f"{STATE} was written by a newer kdtreectl" in done.err.splitlines()[-1], (verb, done.err)
    assert host.ctl("status").rc == REFUSED
    assert host.tree("/etc", "/opt", "/var/lib/kdtree") == before and host.engine("InvocationID") == engine


def test_a_journal_of_a_newer_kdtreectl_is_left_alone_and_the_engine_starts_all_the_same(host):
    """Also at boot: what can't be understood is for a person, and the engine isn't held up by it."""
    text = json.dumps({"is": "begin", "format": 99, "time": "2030-01-01T00:00:00Z", "plan": {"verb": "mode"}})
    host.write(JOURNAL, f"{hashlib.sha256(text.encode()).hexdigest()[:16]} {text}\n", 0o600)
    before = host.tree("/etc", "/opt", "/var/lib/kdtree")
    for verb in (["recover"], ["deploy", "--accept-engine", "--yes"], ["mode", "validate", "--yes"], ["uninstall", "--yes"]):
        done = host.ctl(*verb)
        assert done.rc == REFUSED and f"{JOURNAL} was written by a newer kdtreectl" in done.err.splitlines()[-1], (verb, done.err)
    assert host.tree("/etc", "/opt", "/var/lib/kdtree") == before
    host.systemctl("stop", UNIT).check()
    host.run(["systemctl", "restart", "kdtree-recover.service"])
    assert host.show("kdtree-recover", "Result")["Result"] == "exit-code"
    host.systemctl("start", UNIT).check()
    host.wait_healthy()
    assert host.tree("/etc", "/opt", "/var/lib/kdtree") == before
