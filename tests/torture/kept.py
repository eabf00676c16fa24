# SPDX-License-Identifier: Apache-2.0
"""Outcomes of a campaign that was cut off, kept for the next one: a JSON line each, in a file named by a digest of all that
made them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Iterator

from faults import Outcome
from package import REPOSITORY
from torture_host import Point
from verb_scenes import Scene

# What an outcome depends on: in the package, in the build, in the repository.
PACKAGED = ("usr/bin/kdtreectl", "usr/lib/systemd", "usr/lib/tmpfiles.d", "usr/lib/sysusers.d", "usr/share/kdtree/sitecustomize")
TOOLS = ("stop_at", "rename_in_place.so")
HARNESS = ("tests/torture", "tests/host/image.py", "tests/host/machine.py", "tests/host/package.py", "tests/host/kdtree_host.py",
           "tests/engine/light")


def _files(top: Path) -> Iterator[Path]:
    if top.is_file():
        yield top
    elif top.is_dir():
        yield from sorted(path for path in top.rglob("*") if path.is_file() and path.suffix != ".pyc")


def digest_of(layer: Path, build: Path) -> str:
    """Of the installed program, its units, what runs in the engine, and this harness."""
    tops = [(layer, name) for name in PACKAGED] + [(build / "tests" / "torture", name) for name in TOOLS]
    tops += [(REPOSITORY, name) for name in HARNESS]
    total = hashlib.sha256()
    for base, name in tops:
        for path in _files(base / name):
            total.update(f"{path.relative_to(base)}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()[:16]


def key_of(scene: Scene, point: Point, fault: str) -> str:
    """The same from one trace of the scene to the next."""
    return f"{scene.name} | {point.number} {point.label} | {fault}"


class Kept:
    """The outcomes of one digest, by key."""

    def __init__(self, folder: Path, digest: str, forget: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.digest = digest
        self._file = folder / f"{digest}.jsonl"
        if forget:
            self._file.unlink(missing_ok=True)
        self.outcomes: dict[str, Outcome] = {}
        for line in self._file.read_text().splitlines() if self._file.exists() else []:
            try:
                values = json.loads(line)
            except ValueError:
                continue  # the last line of a run that was killed
            key = values.pop("key")
            self.outcomes[key] = Outcome(**{**values, "broken": tuple(values["broken"])})

    def add(self, key: str, outcome: Outcome) -> None:
        self.outcomes[key] = outcome
        with open(self._file, "a") as file:
            file.write(json.dumps({"key": key, **asdict(outcome)}) + "\n")
