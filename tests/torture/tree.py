# SPDX-License-Identifier: Apache-2.0
"""Folders of a host as a value: taken, compared, put back."""

from __future__ import annotations

import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Iterable


@dataclass(frozen=True)
class Entry:
    """One path: kind and mode, owner, group, extended attributes, what a file holds or a link points to."""

    mode: int
    uid: int
    gid: int
    xattrs: tuple[tuple[str, bytes], ...] = ()
    held: bytes | str | None = None

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.mode)


Tree = dict[str, Entry]  # path as the host sees it -> entry


def entry_at(path: Path) -> Entry | None:
    """None where nothing is."""
    try:
        about = path.lstat()
    except FileNotFoundError:
        return None
    held: bytes | str | None = None
    if stat.S_ISLNK(about.st_mode):
        held = os.readlink(path)
    elif stat.S_ISREG(about.st_mode):
        held = path.read_bytes()
    names = sorted(os.listxattr(path, follow_symlinks=False))
    xattrs = tuple((name, os.getxattr(path, name, follow_symlinks=False)) for name in names)
    return Entry(about.st_mode, about.st_uid, about.st_gid, xattrs, held)


def take(root: Path, folders: Iterable[str]) -> Tree:
    """Everything in and below `folders` of the host whose / is seen at `root`."""
    tree: Tree = {}
    for folder in folders:
        top = root / folder.lstrip("/")
        if entry_at(top) is None:
            continue
        paths = [top]
        for parent, directories, files in os.walk(top):
            paths += [Path(parent, name) for name in directories + files]
        for path in paths:
            entry = entry_at(path)
            if entry is not None:
                tree["/" + str(path.relative_to(root))] = entry
    return tree


def put(root: Path, folders: Iterable[str], wanted: Tree) -> set[str]:
    """Makes `folders` as they were taken. The paths that had to be changed. Nothing may write there meanwhile."""
    there = take(root, folders)
    changed = {name for name in {**there, **wanted} if there.get(name) != wanted.get(name)}
    if not changed:
        return changed
    for name in sorted(there, reverse=True):
        if name not in wanted or stat.S_IFMT(there[name].mode) != stat.S_IFMT(wanted[name].mode):
            _remove(root / name.lstrip("/"))
    for name in sorted(wanted):
        path = root / name.lstrip("/")
        if entry_at(path) != wanted[name]:
            _write(path, wanted[name])
    return changed


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _write(path: Path, entry: Entry) -> None:
    if entry.is_directory:
        path.mkdir(exist_ok=True)
    else:
        path.unlink(missing_ok=True)
        if isinstance(entry.held, str):
            path.symlink_to(entry.held)
        else:
            path.write_bytes(entry.held or b"")
    os.chown(path, entry.uid, entry.gid, follow_symlinks=False)
    if not stat.S_ISLNK(entry.mode):
        path.chmod(stat.S_IMODE(entry.mode))
    for name, value in entry.xattrs:
        os.setxattr(path, name, value, follow_symlinks=False)
