# SPDX-License-Identifier: Apache-2.0
"""A model of what the verbs mean, written from the manual and not from the code, and random walks that hold a host to it.

    model.py [--seed 1] [--walks 10] [--steps 12]"""

from __future__ import annotations

import argparse
import random
import sys
from dataclasses import dataclass, replace

from campaign import Bench
from invariants import DONE, KILLED, REFUSED, ROLLBACK_FAILED, ROLLED_BACK, consistent, state_of
from kdtree_host import UNIT, host_layer
from machine import Scratch
from torture_host import TortureHost

OK, NO = True, False  # the verb is carried out; it is refused


@dataclass(frozen=True)
class Deployed:
    """`mode` None: nothing is deployed."""

    mode: str | None = None
    cold: bool = False


@dataclass(frozen=True)
class Model:
    """What is in force, and the good state before it (None: there is none to go back to)."""

    now: Deployed = Deployed()
    before: Deployed | None = None

    def after(self, verb: str) -> "tuple[bool, Model]":
        """What the verb does if nothing goes wrong."""
        if verb == "deploy":
            return OK, self if self.now.mode and not self.now.cold else self._to(Deployed("off"))
        if verb == "uninstall":
            return OK, Model()
        if self.now.mode is None:
            return NO, self
        if verb == "rollback":
            if self.before is None:
                return NO, self
            proven = replace(self.before, mode="validate") if self.before.mode == "on" else self.before
            return OK, Model(proven, None)
        return OK, self._to({"off": Deployed("off"), "validate": Deployed("validate"), "cold": Deployed("off", True)}[verb])

    def _to(self, target: Deployed) -> "Model":
        if target == self.now:
            return self
        return Model(target, self.now if self.now.mode else self.before)


VERBS = {
    "deploy": ("deploy", "--yes", "--accept-engine"),
    "off": ("mode", "off", "--yes"),
    "validate": ("mode", "validate", "--yes"),
    "cold": ("mode", "off", "--cold", "--yes"),
    "rollback": ("rollback", "--yes"),
    "uninstall": ("uninstall", "--keep-releases", "--yes"),
}
OFTEN = {"deploy": 2, "off": 3, "validate": 4, "cold": 2, "rollback": 3, "uninstall": 1}
OFTEN_WITHOUT = {"deploy": 9, "validate": 1, "rollback": 1, "uninstall": 1}  # where nothing is deployed
FAULTS = ("kill", "enospc", "full", "eio", "cut")
FURTHEST = 75  # changes of a verb without its build


class Walk:
    """One random walk. `said` has a line for each step, for whoever has to read a failure."""

    def __init__(self, host: TortureHost, seed: int) -> None:
        self._host, self._random = host, random.Random(seed)
        self.model = Model()
        self.said: list[str] = []

    def step(self) -> list[str]:
        """One verb, perhaps with a fault; or a restart of the engine, a power cut, a recover that has nothing to do.
        Returns the broken rules."""
        kind = self._random.choices(("verb", "fault", "restart", "power", "recover"), (6, 10, 1, 1, 1))[0]
        if kind == "restart":
            self.said.append("the engine is restarted")
            self._host.systemctl("restart", UNIT).check()
            self._settle()
            return self._compare(self.model)
        if kind == "power":
            self.said.append("the power goes")
            self._host.cut_power()
            self._host.boot_again()
            self._settle()
            return self._compare(self.model)
        if kind == "recover":
            self.said.append("recover")
            return self._recover() + self._compare(self.model)
        often = OFTEN if self.model.now.mode else OFTEN_WITHOUT
        verb = self._random.choices(list(often), list(often.values()))[0]
        return self._verb(verb) if kind == "verb" else self._fault(verb)

    def _verb(self, verb: str) -> list[str]:
        carried_out, after = self.model.after(verb)
        done = self._host.ctl(*VERBS[verb])
        self.said.append(f"{verb}: exit {done.rc}")
        self._settle()
        if done.rc != (DONE if carried_out else REFUSED):
            return [f"{verb} exits {done.rc} in {self.model}: {done.err.strip()}"]
        self.model = after
        return self._compare(after)

    def _fault(self, verb: str) -> list[str]:
        fault, at = self._random.choice(FAULTS), self._random.randint(1, FURTHEST)
        carried_out, after = self.model.after(verb)
        rc, broken = self._cut(verb, at) if fault == "cut" else self._stopped(verb, at, fault)
        self.said.append(f"{verb}, {fault} at {at}: {'killed' if rc is KILLED else f'exit {rc}'}")
        self._settle()
        broken += self._recover()
        found = self._found()
        allowed = {DONE: [after.now], REFUSED: [self.model.now], ROLLED_BACK: [self.model.now],
                   ROLLBACK_FAILED: [self.model.now, after.now, Deployed("off", True)]}.get(rc, [self.model.now, after.now])
        if found not in allowed:
            return broken + [f"{found} after {verb} with {fault}, exit {rc}, from {self.model}"]
        if found == after.now and carried_out and rc in (DONE, KILLED, ROLLBACK_FAILED) and found != self.model.now:
            self.model = after
        elif found != self.model.now:
            self.model = Model(found, self.model.now)
        return broken + self._compare(self.model)

    def _stopped(self, verb: str, at: int, fault: str) -> tuple[int | None, list[str]]:
        return self._host.traced(VERBS[verb], at=at, fault=fault).rc, []

    def _cut(self, verb: str, at: int) -> tuple[int | None, list[str]]:
        self._host.sync()
        held = self._host.hold(VERBS[verb], at)
        rc = KILLED if held.there else held.kill().rc
        self._host.cut_power()
        if held.there:
            held.forget()
        self._host.boot_again()
        return rc, [] if self._host.is_closed() else ["the journal is still open after the boot"]

    def _recover(self) -> list[str]:
        done = self._host.ctl("recover")
        self._settle()
        return [] if done.rc == DONE else [f"recover exits {done.rc}: {done.err.strip()}"]

    def _found(self) -> Deployed:
        current = state_of(self._host.take())["current"]
        return Deployed(current["mode"] if current["release"] else None, current["cold"])

    def _compare(self, model: Model) -> list[str]:
        taken = self._host.take()
        found = self._found()
        wrong = [] if found == model.now else [f"{found} is in force and not {model.now}"]
        return wrong + consistent(self._host, taken)

    def _settle(self) -> None:
        self._host.wait_healthy()
        self._host.wait("ranks report", lambda: self._host.engine_mode() != "mixed")


def walk(host: TortureHost, seed: int, steps: int) -> tuple[list[str], list[str]]:
    """From a host with nothing deployed. (what was done, broken rules of the first step that broke any)."""
    walking = Walk(host, seed)
    for _ in range(steps):
        broken = walking.step()
        if broken:
            return walking.said, broken
    return walking.said, []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--walks", type=int, default=10)
    parser.add_argument("--steps", type=int, default=12)
    options = parser.parse_args()
    scratch, failed = Scratch(), 0
    bench = Bench(host_layer(scratch.folder / "package"), scratch.folder)
    try:
        for seed in range(options.seed, options.seed + options.walks):
            said, broken = walk(bench.host(with_disk=True), seed, options.steps)
            print(f"walk {seed}: {'; '.join(said)}: {'; '.join(broken) or 'consistent'}", flush=True)
            failed += bool(broken)
            bench.drop(with_disk=True)
    finally:
        bench.close()
        scratch.remove()
    print(f"{options.walks} walks of {options.steps} steps, {failed} inconsistent")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
