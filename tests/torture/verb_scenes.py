# SPDX-License-Identifier: Apache-2.0
"""What is tortured: each verb from the states that it starts in, traced once without a fault."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Callable, Sequence

from invariants import View, view_of
from torture_host import Point, TortureHost
from tree import Tree

DEPLOY = ("deploy", "--yes", "--accept-engine")
RECORDS = "/var/lib/kdtree"  # no engine reads it
PROGRAMS = "/opt/kdtree"  # an engine without kdtree reads nothing of it
# name: start, verb, and which of its points count
VERBS: dict[str, tuple[str, tuple[str, ...]]] = {
    "deploy": ("built", DEPLOY),
    "build": ("plain", DEPLOY),  # up to the first byte of the journal: the rest is as in deploy
    "mode-live": ("off", ("mode", "validate", "--yes")),
    "mode-cold": ("off", ("mode", "off", "--cold", "--yes")),
    "mode-back": ("cold", ("mode", "off", "--yes")),
    "rollback-live": ("validate", ("rollback", "--yes")),
    "rollback-restart": ("cold", ("rollback", "--yes")),
    "uninstall": ("off", ("uninstall", "--yes")),
    "recover-back": ("cut-in-gate", ("recover",)),
    "recover-forward": ("cut-after-gate", ("recover",)),
}


@dataclass(frozen=True)
class Start:
    """A state of the host to begin in: its folders, and the mode that its engine runs in (None: without kdtree). `cut`: a
    change is open, and PID 1 has a timer for it."""

    name: str
    tree: Tree = field(repr=False)
    mode: str | None
    cut: bool = False

    def enter(self, host: TortureHost) -> None:
        host.stop_timer()
        unread = (RECORDS, PROGRAMS) if self.mode is None else (RECORDS,)
        changed = [path for path in host.put(self.tree) if not path.startswith(unread)]
        if self.cut:
            host.arm_timer()
        if changed or host.control_mode() is not None or host.engine_mode() != self.mode:
            host.restart_engine()
            host.wait(f"the engine runs in {self.mode}", lambda: host.engine_mode() == self.mode)


@dataclass(frozen=True)
class Scene:
    """A verb, traced: where it starts, the states it may end in, the points it can be stopped at."""

    name: str
    argv: tuple[str, ...]
    start: Start
    end: Tree = field(repr=False)
    old: View = field(repr=False)
    new: View = field(repr=False)
    points: tuple[Point, ...] = field(repr=False)

    @property
    def changes(self) -> bool:
        """Does the verb begin a change of its own?"""
        return self.argv[0] != "recover"


class Stage:
    """Makes starts and scenes on a host that is prepared, each once."""

    def __init__(self, host: TortureHost) -> None:
        self.host = host
        self._starts: dict[str, Start] = {"plain": Start("plain", host.take(), None)}
        self._scenes: dict[str, Scene] = {}

    def start(self, name: str) -> Start:
        if name not in self._starts:
            self._make(name)
            self._starts[name] = Start(name, self.host.take(), self.host.engine_mode(), name.startswith("cut-"))
        return self._starts[name]

    def _make(self, name: str) -> None:
        steps: dict[str, tuple[str, Sequence[Sequence[str]]]] = {
            "built": ("plain", [DEPLOY, ("uninstall", "--keep-releases", "--yes")]),
            "off": ("built", [DEPLOY]),
            "validate": ("off", [("mode", "validate", "--yes")]),
            "cold": ("off", [("mode", "off", "--cold", "--yes")]),
        }
        if name in steps:
            before, verbs = steps[name]
            self.start(before).enter(self.host)
            for verb in verbs:
                self.host.ctl(*verb).check()
        else:
            self._cut_off(after_gate=name == "cut-after-gate")

    def _cut_off(self, after_gate: bool) -> None:
        """Leaves a deploy killed after its engine was restarted; `after_gate`: when the journal says that the gate has
        passed, and nothing more was done."""
        points = self.scene("deploy").points
        restart = next(point.number for point in points if point.about == "RestartUnit")
        record = next(point.number for point in points if point.number > restart + 1 and "state.json" in point.about)
        self.start("built").enter(self.host)
        at = record if after_gate else restart + 2
        if self.host.traced(DEPLOY, at=at, fault="kill").rc is not None:
            raise AssertionError(f"deploy was not killed at {at}")
        self.host.wait("the engine has been restarted", lambda: self.host.engine_mode() == "off")

    def scene(self, name: str) -> Scene:
        if name not in self._scenes:
            self._scenes[name] = self._trace(name)
        return self._scenes[name]

    def _trace(self, name: str) -> Scene:
        start_name, argv = VERBS[name]
        start = self.start(start_name)
        start.enter(self.host)
        done = self.host.traced(argv)
        if done.rc != 0:
            raise AssertionError(f"{' '.join(argv)} from {start_name} exited {done.rc}\n{done.err}")
        end = self.host.take()
        new = view_of(end)
        old = new if name.startswith("recover") else view_of(start.tree)
        return Scene(name, argv, start, end, old, new, _counted(name, done.points))

    def scenes(self, names: Sequence[str] = tuple(VERBS), say: Callable[[str], None] = lambda _: None) -> list[Scene]:
        made = []
        for name in names:
            made.append(self.scene(name))
            say(f"{name}: {len(made[-1].points)} points")
        return made


def _counted(name: str, points: tuple[Point, ...]) -> tuple[Point, ...]:
    if name != "build":
        return points
    journal = next(point.number for point in points if point.about.endswith("/journal/active"))
    return tuple(point for point in points if point.number < journal)
