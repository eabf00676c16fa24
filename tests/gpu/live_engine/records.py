# SPDX-License-Identifier: Apache-2.0
"""engine-*.json: what is in it, how stages add to it, and what must not come together in one record."""
import json
import os
import threading
from pathlib import Path

HEAD = ("gpu", "gpu_uuid", "driver", "sglang", "torch", "layers", "date", "commit")
POINT_KEY = ("spec", "batch", "context")
_POSITIVE = ("off_ms", "on_ms", "ceiling_ms", "validate_ms", "off_again_ms", "unpatched_ms", "off_tok_s", "on_tok_s",
             "ceiling_tok_s", "validate_tok_s")


class RecordError(Exception):
    """A record that is not one, or that must not be merged; the text says why."""


def check(record: dict) -> None:
    """Errors: RecordError naming the first thing that is wrong."""
    for name in (*HEAD, "points"):
        if name not in record:
            raise RecordError(f"no {name!r}")
    seen = set()
    for point in record["points"]:
        missing = [name for name in POINT_KEY if name not in point]
        if missing:
            raise RecordError(f"a point without {', '.join(missing)}")
        key = tuple(point[name] for name in POINT_KEY)
        if key in seen:
            raise RecordError(f"point {key} twice")
        seen.add(key)
        for name in _POSITIVE:
            if name in point and not (isinstance(point[name], (int, float)) and point[name] > 0):
                raise RecordError(f"point {key}: {name} is {point[name]!r}, expected a number above 0")


def merge(first: dict, second: dict) -> dict:
    """Points and other parts of two records of one GPU in one run; the second's values win.
    Errors: RecordError if GPU, software or model differ: figures of different machines don't mix."""
    for name in HEAD:
        if name != "date" and first.get(name) != second.get(name):
            raise RecordError(f"{name}: {first.get(name)!r} and {second.get(name)!r}; these are not one run")
    points = {tuple(p[n] for n in POINT_KEY): dict(p) for p in first["points"]}
    for point in second["points"]:
        points.setdefault(tuple(point[n] for n in POINT_KEY), {}).update(point)
    rest = {k: v for r in (first, second) for k, v in r.items() if k not in (*HEAD, "points")}
    merged = {**{n: first[n] for n in HEAD}, "points": sorted(points.values(), key=lambda p: [p[n] for n in POINT_KEY]),
              **rest}
    check(merged)
    return merged


class Record:
    """The record that a run writes: every call saves at once, so a run that is cut short loses nothing. Thread-safe."""

    def __init__(self, path: Path, head: dict):
        self.path = path
        self.data: dict = {**{name: head[name] for name in HEAD}, "points": []}
        self._lock = threading.Lock()
        self._save()

    def _save(self) -> None:
        check(self.data)
        fresh = self.path.with_suffix(".new")
        fresh.write_text(json.dumps(self.data, indent=1) + "\n")
        os.replace(fresh, self.path)

    def point(self, spec: str, batch: int, context: int, **values: object) -> None:
        """Adds values to one row of the table."""
        key = {"spec": spec, "batch": batch, "context": context}
        with self._lock:
            row = next((p for p in self.data["points"] if all(p[k] == v for k, v in key.items())), None)
            if row is None:
                self.data["points"].append(row := dict(key))
            row.update(values)
            self._save()

    def put(self, name: str, value: object) -> None:
        """A part beside the table: switch latency, agreement, faults, ..."""
        with self._lock:
            self.data[name] = value
            self._save()

    def add(self, name: str, **values: object) -> None:
        """Values of a part that is a mapping."""
        with self._lock:
            self.data[name] = {**self.data.get(name, {}), **values}
            self._save()
