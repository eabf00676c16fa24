# SPDX-License-Identifier: Apache-2.0
"""One run: a scene, stopped at a point by a fault, recovered, looked at."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from invariants import (DONE, KILLED, LOCKED, REFUSED, ROLLBACK_FAILED, ROLLED_BACK, after_recovery, before_recovery,
                        holds_already, journal_began, journal_passed, recorded)
from machine import HostError
from verb_scenes import Scene
from torture_host import PATIENCE_S, Point, TortureHost

# Which faults a point can have (stop_at.cpp says what they do); "cut" is the loss of power.
FAULTS = {
    "file": ("kill", "eio", "cut"),
    "space": ("kill", "eio", "enospc", "full", "cut"),
    "bus": ("kill", "bus", "reply", "nobus", "cut"),
}
AFTER_END = Point(1 << 30, "end", "after the last change")


@dataclass(frozen=True)
class Outcome:
    """How one run ended. `rc` None: the verb was killed. `broken`: rules that did not hold; none = consistent."""

    scene: str
    point: str
    fault: str
    hit: bool
    rc: int | None
    broken: tuple[str, ...]


def faults_of(point: Point) -> tuple[str, ...]:
    if point == AFTER_END:
        return ("cut",)
    return FAULTS["bus" if point.on_bus else "space" if point.takes_space else "file"]


def run(host: TortureHost, scene: Scene, point: Point, fault: str, *, extra: tuple[str, ...] = (),
        preload: str = "") -> Outcome:
    """`extra`, `preload`: a planted bug (stop_at's options, a library in TOOLS)."""
    scene.start.enter(host)
    if fault == "cut":
        return _cut(host, scene, point, extra)
    invocation = host.engine("InvocationID")
    broken: list[str] = []
    if fault == "kill":
        held = host.hold(scene.argv, point.number, extra, preload)
        if held.there and point.number > _locked_at(scene):
            second = host.ctl("mode", "off", "--yes")
            if second.rc != LOCKED:
                broken.append(f"a second operator was not locked out: exit {second.rc}, {second.err.strip()}")
        stopped = held.kill()
    else:
        stopped = host.traced(scene.argv, at=point.number, fault=fault, extra=extra, preload=preload)
    if not stopped.hit:
        return Outcome(scene.name, str(point), fault, False, stopped.rc, ())
    taken = host.take()
    broken += before_recovery(taken, scene.start.tree, scene.end, stopped.rc)
    if stopped.rc == REFUSED and host.engine("InvocationID") != invocation:
        broken.append("exit status 3 says that nothing was changed, and the engine was restarted")
    passed = journal_passed(taken)
    if stopped.rc == KILLED and scene.changes and passed is not None and not host.timer_there():
        broken.append("a change is open, and PID 1 has no timer that would undo it")
    settle(host)
    broken += holds_already(host, taken, scene, stopped.rc, stopped.err)
    broken += _recover(host)
    broken += _look(host, scene, stopped.rc, passed, stopped.err)
    if stopped.rc in (DONE, ROLLED_BACK) or journal_began(taken):
        broken += recorded(host.take(), scene, stopped.rc, bool(passed), stopped.err)
    return Outcome(scene.name, str(point), fault, True, stopped.rc, tuple(broken))


def _cut(host: TortureHost, scene: Scene, point: Point, extra: tuple[str, ...]) -> Outcome:
    host.sync()
    held = host.hold(scene.argv, point.number, extra)
    hit = held.there or point == AFTER_END
    rc = None if held.there else held.kill().rc
    passed = journal_passed(host.take()) if held.there else None
    host.cut_power()
    if held.there:
        held.forget()
    try:
        host.boot_again()
    except HostError as error:
        return Outcome(scene.name, str(point), "cut", hit, rc, (f"the host does not boot: {error}",))
    if passed and point.call == "fsync" and point.about.endswith("/active"):
        passed = None  # the record that says so was on its way to the disk: both are right
    broken = [] if host.is_closed() else ["the journal is still open after the boot"]
    host.wait("the boot is over", lambda: host.systemctl("is-system-running").out.strip() in ("running", "degraded"), 60, 0.2)
    broken += _recover(host)  # has nothing to do but to tidy up: half-made releases of before the journal
    return Outcome(scene.name, str(point), "cut", hit, rc, tuple(broken + _look(host, scene, rc, passed)))


def _recover(host: TortureHost) -> list[str]:
    done = host.ctl("recover")
    if done.rc == ROLLBACK_FAILED and "the engine runs without kdtree now" in done.err:
        done = host.ctl("recover")  # it ended a fallback: that is no success, and nothing is left of it
    return [] if done.rc == DONE else [f"recover exits {done.rc}: {done.err.strip()}"]


def settle(host: TortureHost) -> None:
    """Gives an engine that was started the time that it takes; what doesn't come is for the invariants to say."""
    with contextlib.suppress(AssertionError):
        host.wait_healthy()
        host.wait("ranks report", lambda: host.engine_mode() != "mixed", PATIENCE_S, 0.2)


def _look(host: TortureHost, scene: Scene, rc: int | None, passed: bool | None, said: str = "") -> list[str]:
    settle(host)
    return after_recovery(host, host.take(), scene.old, scene.new, rc=rc, passed=passed, said=said)


def _locked_at(scene: Scene) -> int:
    """The first point that has the lock: flock itself changes nothing."""
    return next((point.number for point in scene.points if point.call == "ftruncate"), 1 << 30)
