# SPDX-License-Identifier: Apache-2.0
"""What an engine's source looks like where kdtree touches it or relies on it. Reads files only: imports no engine.

An item (a pinned function or class of contract.py) has the digest of its source lines without comments, blank lines,
trailing blanks and common indentation, so it is the same under every Python. The fingerprint is the digest of all items'
digests; engines.json holds the known ones.
"""
import hashlib
import importlib.util
import json
import os
import re
from dataclasses import dataclass, field

from .bind import missing
from .contract import TABLE, Function
from .source import Source, normalise, parameters, version_of

ITEMS: tuple[Function, ...] = tuple(e for e in TABLE if isinstance(e, Function) and e.pinned)


@dataclass
class Engine:
    """One engine as found on disk. items: qualified name -> sha256, "" = not there; parameters: those of each item that
    is a function; binds: nothing is missing that kdtree can't do without; differences: to the nearest known engine, []
    if known."""

    version: str
    folder: str
    fingerprint: str
    items: dict[str, str]
    parameters: dict[str, list[str]]
    known: bool = False
    binds: bool = False
    differences: list[str] = field(default_factory=list)


def known_engines() -> list[dict[str, object]]:
    """engines.json: [{"engine", "version", "fingerprint", "items", "parameters"}], oldest first."""
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "engines.json"), encoding="utf-8") as file:
        return json.load(file)["engines"]


def fingerprint_of(items: dict[str, str]) -> str:
    """sha256 (hex) over "name digest\\n", sorted by name."""
    return hashlib.sha256("".join(f"{n} {d or 'missing'}\n" for n, d in sorted(items.items())).encode()).hexdigest()


def find_package() -> str:
    """Folder of the sglang package that this Python would import (without importing it); "" = there is none."""
    try:
        spec = importlib.util.find_spec("sglang")
    except (ImportError, ValueError):
        return ""
    places = list(spec.submodule_search_locations or []) if spec else []
    return places[0] if places else ""


def examine(folder: str) -> Engine:
    """Fingerprints the engine whose package lies at `folder` and compares it with the known ones."""
    source = Source(folder)
    items, taken = {}, {}
    for item in ITEMS:
        text = source.text(item.place, item.name)
        items[item.name] = hashlib.sha256(normalise(text).encode()).hexdigest() if text else ""
        node = source.find(item.place, item.name)
        if hasattr(node, "args"):
            taken[item.name] = [name for names in parameters(node) for name in names]
    engine = Engine(version_of(folder), folder, fingerprint_of(items), items, taken)
    lacking = missing(source)
    engine.binds = not lacking
    known = known_engines()
    engine.known = engine.binds and any(k["fingerprint"] == engine.fingerprint for k in known)
    if not engine.known:
        engine.differences = lacking + _nearest(engine, known)
    return engine


def _nearest(engine: Engine, known: list[dict[str, object]]) -> list[str]:
    """Differences to the release that the engine is a build of, by its version; else to the one with the fewest."""
    release = re.match(r"\d+\.\d+\.\d+", engine.version)
    same = [other for other in known if release and other["version"] == release.group()]
    best: list[str] | None = None
    for other in reversed(same or known):  # of two equally near ones the newer
        label = f"{other['engine']} {other['version']}"
        found = []
        for name, digest in sorted(engine.items.items()):
            if digest != other["items"].get(name, ""):
                what = "is missing" if not digest else "is new" if not other["items"].get(name) else "differs"
                found.append(f"{name} {what}{_signature(engine, other, name)} (compared with {label})")
        if best is None or len(found) < len(best):
            best = found
    return best if best is not None else ["no known engine to compare with"]


def _signature(engine: Engine, other: dict[str, object], name: str) -> str:
    """How the parameters differ, in words; "" = not at all, or nobody knows."""
    ours, theirs = engine.parameters.get(name), other.get("parameters", {}).get(name)
    if ours is None or theirs is None or ours == theirs:
        return ""
    more, less = [n for n in ours if n not in theirs], [n for n in theirs if n not in ours]
    said = ([f"takes {', '.join(more)} too"] if more else []) + ([f"takes no {', '.join(less)}"] if less else [])
    return f": {' and '.join(said) or 'its parameters are in another order'}"
