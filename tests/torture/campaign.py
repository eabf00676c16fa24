# SPDX-License-Identifier: Apache-2.0
"""Every verb, stopped at every change in every way: `make torture`.

    campaign.py [--scenes a,b] [--faults kill,cut] [--only TEXT] [--seed 1] [--minutes 0] [--jobs 2] [--again] [--record FILE]

--minutes ends it early (0: when all is run); runs come in an order drawn from --seed, so a part is a sample of all. Outcomes
are kept in the build folder under a digest of kdtreectl and of the harness: the next campaign of the same digest goes on where
this one stopped (--again: begins anew). The record says "whole" when every planned run was made by one digest.
Prints "N points x M faults, K inconsistent" and each inconsistent run; exit status 1 where there is one."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import multiprocessing
import random
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Iterator, Sequence

from faults import AFTER_END, FAULTS, Outcome, faults_of, run
from kdtree_host import host_layer
from kept import Kept, digest_of, key_of
from machine import Scratch, make_disk
from package import build_folder
from verb_scenes import VERBS, Scene, Stage
from torture_host import Point, TortureHost

REPOSITORY = Path(__file__).resolve().parents[2]
RECORD = REPOSITORY / "tests" / "host" / "results" / "torture.json"
PIECE = 12
ALL_FAULTS = tuple(dict.fromkeys(fault for kind in FAULTS.values() for fault in kind))


@dataclass
class Task:
    scene: Scene
    point: Point
    fault: str

    @property
    def key(self) -> str:
        return key_of(self.scene, self.point, self.fault)


def tasks_of(scenes: Sequence[Scene], faults: Sequence[str], seed: int) -> list[Task]:
    """All of them, in an order drawn from `seed`, in runs of one scene: to change the scene takes a restart of the engine."""
    draw = random.Random(seed)
    pieces: list[list[Task]] = []
    for scene in scenes:
        tasks = [Task(scene, point, fault) for point in (*scene.points, AFTER_END) for fault in faults_of(point) if fault in faults]
        draw.shuffle(tasks)
        pieces += [tasks[i:i + PIECE] for i in range(0, len(tasks), PIECE)]
    draw.shuffle(pieces)
    return [task for piece in pieces for task in piece]


class Bench:
    """One worker's hosts: one for what needs no reboot, one on a disk of its own for power cuts. A host that a run left
    unusable is replaced."""

    def __init__(self, layer: Path, folder: Path) -> None:
        self._layer, self._folder = layer, folder
        self._hosts: dict[bool, TortureHost] = {}
        self._made = 0

    def host(self, with_disk: bool) -> TortureHost:
        if with_disk not in self._hosts:
            self._made += 1
            disk = make_disk(self._folder / f"disk-{self._made}") if with_disk else None
            host = TortureHost([self._layer], disk)
            host.__enter__()
            host.prepare()
            host.sync()
            self._hosts[with_disk] = host
        return self._hosts[with_disk]

    def run(self, task: Task) -> Outcome:
        """A run that breaks off (the harness could not ask what it wanted to) is made once more, on another host."""
        with_disk = task.fault == "cut"
        broke_off = []
        for _ in range(2):
            try:
                return run(self.host(with_disk), task.scene, task.point, task.fault)
            except (AssertionError, OSError, TimeoutError, RuntimeError, subprocess.SubprocessError) as error:
                self.drop(with_disk)
                said = str(error).strip().splitlines() or [type(error).__name__]
                broke_off.append(f"the run broke off: {said[0]}")
        return Outcome(task.scene.name, str(task.point), task.fault, True, None, tuple(broke_off))

    def drop(self, with_disk: bool) -> None:
        with contextlib.suppress(KeyError):
            host = self._hosts.pop(with_disk)
            host.__exit__()
            if host.disk is not None:
                host.disk.unlink()

    def close(self) -> None:
        for with_disk in (False, True):
            self.drop(with_disk)


@dataclass
class Tally:
    """What was run. Points are (scene, point) pairs of which at least one fault was run."""

    points: set[str] = field(default_factory=set)
    faults: set[str] = field(default_factory=set)
    runs: int = 0
    unreached: int = 0
    inconsistent: list[Outcome] = field(default_factory=list)

    def add(self, key: str, outcome: Outcome) -> None:
        if not outcome.hit:
            self.unreached += 1
            return
        self.runs += 1
        self.points.add(key.rsplit(" | ", 1)[0])
        self.faults.add(outcome.fault)
        if outcome.broken:
            self.inconsistent.append(outcome)

    @property
    def seen(self) -> int:
        return self.runs + self.unreached

    def line(self) -> str:
        return f"{len(self.points)} points × {len(self.faults)} faults, {len(self.inconsistent)} inconsistent ({self.runs} runs)"


def text_of(outcome: Outcome) -> str:
    ended = "killed" if outcome.rc is None else f"exit {outcome.rc}"
    return f"{outcome.scene} | {outcome.point} | {outcome.fault} | {ended}: " + "; ".join(outcome.broken)


def _work(layer: Path, folder: Path, tasks: "multiprocessing.Queue", outcomes: "multiprocessing.Queue", until: float) -> None:
    folder.mkdir()
    bench = Bench(layer, folder)
    try:
        while time.monotonic() < until:
            piece = tasks.get()
            if piece is None:
                break
            for task in piece:
                if time.monotonic() < until:
                    outcomes.put((task.key, bench.run(task)))
    finally:
        bench.close()
        outcomes.put(None)


def outcomes_of(layer: Path, folder: Path, tasks: Sequence[Task], jobs: int, until: float) -> Iterator[tuple[str, Outcome]]:
    """(key, outcome) of `tasks` as they end. Runs them on `jobs` benches, until time.monotonic() reaches `until`."""
    context = multiprocessing.get_context("fork")
    waiting, done = context.Queue(), context.Queue()
    for piece in [*[tasks[i:i + PIECE] for i in range(0, len(tasks), PIECE)], *[None] * jobs]:
        waiting.put(piece)
    workers = [context.Process(target=_work, args=(layer, folder / f"bench-{i}", waiting, done, until)) for i in range(jobs)]
    for worker in workers:
        worker.start()
    running = jobs
    while running:
        outcome = done.get()
        if outcome is None:
            running -= 1
        else:
            yield outcome
    waiting.cancel_join_thread()
    for worker in workers:
        worker.join()


def _commit() -> str:
    done = subprocess.run(["git", "-C", str(REPOSITORY), "describe", "--always", "--dirty", "--abbrev=12"], capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenes", default=",".join(VERBS))
    parser.add_argument("--faults", default=",".join(ALL_FAULTS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="", help="only runs that have this in \"SCENE | NUMBER CALL ABOUT | FAULT\"")
    parser.add_argument("--again", action="store_true", help="forget the outcomes that are kept of this digest")
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    everything = (options.scenes, options.faults, options.only) == (",".join(VERBS), ",".join(ALL_FAULTS), "")
    until = time.monotonic() + options.minutes * 60 if options.minutes else float("inf")
    started, commit = time.monotonic(), _commit()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - started:6.0f} s] {text}", flush=True)

    scratch = Scratch()
    tally = Tally()
    try:
        layer = host_layer(scratch.folder / "package")
        kept = Kept(build_folder() / "torture", digest_of(layer, build_folder()), forget=options.again)
        with TortureHost([layer]) as host:
            host.prepare()
            scenes = Stage(host).scenes(options.scenes.split(","), say)
        tasks = [task for task in tasks_of(scenes, options.faults.split(","), options.seed) if options.only in task.key]
        left = [task for task in tasks if task.key not in kept.outcomes]
        for key in {task.key for task in tasks} & set(kept.outcomes):
            tally.add(key, kept.outcomes[key])
        say(f"{len(left)} runs to make, {len(tasks) - len(left)} are kept under {kept.digest}")
        for key, outcome in outcomes_of(layer, scratch.folder, left, options.jobs, until):
            kept.add(key, outcome)
            tally.add(key, outcome)
            if outcome.broken:
                say("INCONSISTENT " + text_of(outcome))
            elif tally.seen % 50 == 0:
                say(f"{tally.seen} of {len(tasks)}: {tally.line()}")
    finally:
        scratch.remove()
    say(tally.line() + (f", {tally.unreached} points not reached" if tally.unreached else ""))
    if options.record:
        options.record.parent.mkdir(parents=True, exist_ok=True)
        options.record.write_text(json.dumps({
            "points": len(tally.points), "faults": len(tally.faults), "runs": tally.runs, "planned": len(tasks),
            "unreached": tally.unreached, "whole": everything and tally.seen == len(tasks),
            "inconsistent": len(tally.inconsistent), "commit": commit,
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")}, indent=1) + "\n")
    return 1 if tally.inconsistent else 0


if __name__ == "__main__":
    sys.exit(main())
