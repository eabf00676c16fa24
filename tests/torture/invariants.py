# SPDX-License-Identifier: Apache-2.0
"""What must hold of a host before and after recovery, whatever happened to a change. Each check returns the broken rules, a
line each; none = the host is consistent."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torture_host import DROP_IN, HEALTH, TortureHost
from tree import Entry, Tree

if TYPE_CHECKING:
    from verb_scenes import Scene

STATE = "/var/lib/kdtree/state.json"
JOURNAL = "/var/lib/kdtree/journal/"
RELEASES = "/opt/kdtree/releases"
LEFTOVER = re.compile(r"/\.[^/]*(\.kdtree-\d+|staging|damaged|partial|tmp)[^/]*$")
LATE = re.compile(r"^note: (cannot|systemd|removing|starting|stopping) ", re.MULTILINE)
NOTHING = {"release": "", "mode": "off", "cold": False}
KILLED = None
DONE, REFUSED, ROLLED_BACK, ROLLBACK_FAILED, LOCKED = 0, 3, 4, 5, 6


@dataclass(frozen=True)
class View:
    """What is in force: files outside of history, and what state.json says."""

    files: tuple[tuple[str, Entry], ...]
    current: tuple[tuple[str, Any], ...]
    good: str
    trial: bool

    def differs_from(self, other: "View") -> str:
        mine, theirs = dict(self.files), dict(other.files)
        paths = sorted(path for path in {**mine, **theirs} if mine.get(path) != theirs.get(path))
        said = [name for name in ("current", "good", "trial") if getattr(self, name) != getattr(other, name)]
        return ", ".join(paths + [f"state.json: {name} is {getattr(self, name)}" for name in said])


class Damaged(Exception):
    """state.json can't be read."""


def state_of(taken: Tree) -> dict[str, Any]:
    if STATE not in taken:
        return {"current": NOTHING, "good": None, "trial": False, "history": []}
    try:
        return json.loads(taken[STATE].held)
    except ValueError as error:
        raise Damaged(f"{STATE} is damaged: {error}") from None


def view_of(taken: Tree) -> View:
    """Raises Damaged. Releases and history are not part of it: both may have grown."""
    state = state_of(taken)
    files = tuple(sorted((path, entry) for path, entry in taken.items()
                         if not path.startswith(("/var/lib/kdtree", RELEASES)) and not _is_empty_directory(path, taken)))
    return View(files, tuple(sorted(state["current"].items())), json.dumps(state["good"]), state["trial"])


def before_recovery(taken: Tree, old: Tree, new: Tree, rc: int | None = KILLED) -> list[str]:
    """At any moment: each file that serves is whole, the old one or the new one; or, where the verb says that it took the last
    way out (`rc`), gone."""
    broken = []
    for path in sorted({**old, **new}):
        if path.startswith(("/var/lib/kdtree", RELEASES)) or _is_directory(path, old, new):
            continue
        if path not in taken and rc == ROLLBACK_FAILED:
            continue
        if taken.get(path) not in (old.get(path), new.get(path)):
            broken.append(f"{path} is neither the old nor the new one")
    if STATE in taken:
        try:
            state_of(taken)
        except Damaged as error:
            broken.append(str(error))
    return broken


def _is_empty_directory(path: str, tree: Tree) -> bool:
    """Of what counts: an empty folder for drop-ins means nothing to systemd."""
    inside = (other for other in tree if other.startswith(path + "/") and not other.startswith(RELEASES))
    return tree[path].is_directory and next(inside, None) is None


def _is_directory(path: str, *trees: Tree) -> bool:
    return any(path in tree and tree[path].is_directory for tree in trees)


def after_recovery(host: TortureHost, taken: Tree, old: View, new: View, *, rc: int | None, passed: bool | None,
                   said: str = "") -> list[str]:
    """`rc`: what the interrupted verb exited with. `passed`: its journal said that the change was in force, None: not known.
    `said`: what it wrote to stderr."""
    try:
        view = view_of(taken)
    except Damaged as error:
        return [str(error)]
    late = LATE.search(said) if rc == DONE else None  # what comes after the gate may fail, if that is said
    if late:
        view, old, new = (_without_agent(each) for each in (view, old, new))
    broken = consistent(host, taken, releases=not late)
    return broken + _which(view, old, new, rc, passed)


def holds_already(host: TortureHost, taken: Tree, scene: "Scene", rc: int | None, said: str) -> list[str]:
    """What a verb that came to its end says of the host is so without a recovery: in force is the new state after exit status 0,
    the old one after 3 and 4. A change that is still open then has been said to be."""
    if rc not in (DONE, REFUSED, ROLLED_BACK) or (rc != DONE and not scene.changes):
        return []
    target = scene.new if rc == DONE else scene.old
    broken = []
    if not host.is_closed():
        if "kdtreectl" not in said:
            broken.append(f"the change is still open after exit status {rc}, and nobody is told")
    elif state_of(taken)["trial"]:
        broken.append(f"state.json says trial after exit status {rc}")
    return broken + [f"after exit status {rc}: {rule}" for rule in _engine(host, taken, dict(target.current))]


def recorded(taken: Tree, scene: "Scene", rc: int | None, passed: bool, said: str) -> list[str]:
    """The history has one entry more, of this change, and it says how that ended, with its evidence where it failed."""
    if not scene.changes:
        return []
    history = state_of(taken)["history"]
    more = len(history) - len(state_of(scene.start.tree)["history"])
    if more != 1 or history[-1]["verb"] != scene.argv[0]:
        return [f"history has {more} entries more after {scene.argv[0]}, which ended with {rc}"]
    last = history[-1]
    good = rc == DONE or passed
    if (last["result"] == "good") != good:
        return [f"history says {last['result']} of a change that is {'in force' if good else 'not in force'}"]
    if rc == ROLLED_BACK and f"{last.get('evidence')}" not in taken and "evidence could not be kept" not in said:
        return [f"history keeps no evidence of what was rolled back: {last}"]
    return []


def consistent(host: TortureHost, taken: Tree, releases: bool = True) -> list[str]:
    """Nothing lies about, no change is open, and state.json, files, systemd, engine and `status` agree."""
    broken = [f"left over: {path}" for path in sorted(taken) if LEFTOVER.search(path)]
    if not host.is_closed():
        broken.append("the journal is still open")
    if host.timer_there():
        broken.append("the timer for an open change is still there")
    try:
        current = state_of(taken)["current"]
    except Damaged as error:
        return broken + [str(error)]
    if releases:
        broken += _damaged_releases(taken)
    return broken + _engine(host, taken, current) + _said(host, current)


def _without_agent(view: View) -> View:
    files = tuple(item for item in view.files if not item[0].endswith("/kdtree-agent.service") and not item[1].is_directory)
    return View(files, view.current, view.good, view.trial)


def _which(view: View, old: View, new: View, rc: int | None, passed: bool | None) -> list[str]:
    allowed = {DONE: {"new"}, REFUSED: {"old"}, ROLLED_BACK: {"old"}, ROLLBACK_FAILED: {"old", "new"},
               KILLED: {"old", "new"} if passed is None else {"new"} if passed else {"old"}}
    if rc not in allowed:
        return [f"exit status {rc} is none that an interrupted change may have"]
    if view == old:
        found = "old"
    elif view == new:
        found = "new"
    elif rc == ROLLBACK_FAILED and dict(view.current)["cold"] and not view.trial:
        return []  # the last way out, and said to be
    else:
        return [f"neither old nor new; old differs in: {view.differs_from(old)}; new differs in: {view.differs_from(new)}"]
    if old == new:
        return []
    return [] if found in allowed[rc] else [f"the {found} state is in force after exit status {rc}, passed {passed}"]


def _damaged_releases(taken: Tree) -> list[str]:
    broken = []
    for path in [path for path in taken if path.startswith(RELEASES + "/") and path.count("/") == RELEASES.count("/") + 1]:
        manifest = taken.get(path + "/manifest.json")
        if manifest is None:
            broken.append(f"{path} has no manifest")
            continue
        for name, digest in json.loads(manifest.held)["files"].items():
            file = taken.get(f"{path}/{name}")
            if file is None or not isinstance(file.held, bytes) or hashlib.sha256(file.held).hexdigest() not in str(digest):
                broken.append(f"{path}/{name} is not what the manifest lists")
    return broken


def _engine(host: TortureHost, taken: Tree, current: dict[str, Any]) -> list[str]:
    """It serves, in the mode that drop-in, state.json and control file agree on."""
    broken = []
    unit = host.engine("ActiveState", "NeedDaemonReload", "DropInPaths")
    status = host.http(HEALTH)[0]
    if unit["ActiveState"] != "active" or status != 200:
        return [f"the engine does not serve: unit {unit['ActiveState']}, HTTP {status}"]
    if unit["NeedDaemonReload"] != "no":
        broken.append("systemd has not loaded what is on the disk")
    patched = bool(current["release"]) and not current["cold"]
    wanted = current["mode"] if patched else None
    drop_in = taken.get(DROP_IN)
    written = re.search(r"KDTREE_VERIFY=(\w+)", drop_in.held.decode()) if drop_in and drop_in.held else None
    if (written[1] if written else None) != wanted:
        broken.append(f"state.json says {wanted}, the drop-in says {written and written[1]}")
    if (DROP_IN in unit["DropInPaths"].split()) != (drop_in is not None):
        broken.append(f"systemd's drop-ins are {unit['DropInPaths'] or 'none'}")
    running = host.engine_mode()
    if running != wanted:
        broken.append(f"state.json says {wanted}, the engine runs in {running}")
    if host.control_mode() not in (None, wanted):
        broken.append(f"state.json says {wanted}, the control file {host.control_mode()}")
    if patched and (link := taken.get("/opt/kdtree/current")) is not None and not str(link.held).endswith(current["release"]):
        broken.append(f"state.json says release {current['release']}, current is {link.held}")
    return broken


def _said(host: TortureHost, current: dict[str, Any]) -> list[str]:
    """`kdtreectl status` says the same, and has nothing to object."""
    done = host.ctl("status", "--json")
    try:
        said = json.loads(done.out)
    except ValueError:
        return [f"status --json exits {done.rc} without JSON: {done.err.strip()}"]
    broken = [f"status: drift, {line['kind']}: {line['text']}" for line in said["drift"]]
    if done.rc != 0 and not broken:
        broken.append(f"status exits {done.rc}: {done.err.strip()}")
    if said["trial"] or (said["release"] or "") != current["release"] or said["cold"] != current["cold"]:
        broken.append(f"status says release {said['release']}, cold {said['cold']}, trial {said['trial']}")
    return broken


def journal_passed(taken: Tree) -> bool | None:
    """Whether the open journal says that the change had passed its gate; None: there is no open journal."""
    return None if JOURNAL + "active" not in taken else any(b'"is":"passed"' in record for record in _records(taken))


def journal_began(taken: Tree) -> bool:
    """Whether an open journal holds a change: one that was cut off in its first record has begun none."""
    return bool(_records(taken))


def _records(taken: Tree) -> list[bytes]:
    """The whole records of the open journal."""
    entry = taken.get(JOURNAL + "active")
    lines = (entry.held or b"").split(b"\n")[:-1] if entry is not None else []
    return [line[17:] for line in lines if line[:16].decode(errors="replace") == hashlib.sha256(line[17:]).hexdigest()[:16]]
