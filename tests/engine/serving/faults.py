# SPDX-License-Identifier: Apache-2.0
"""Failures on demand. README.md lists them.

    TEST_ENGINE_FAULT="crash_load:1,slow_stop:60"        name[:argument...][@CONDITION], several by comma
    TEST_ENGINE_FAULT_FILE=/run/test-engine/fault        the same text in a file, looked at again as it changes

CONDITION is an environment variable that must be set (`@KDTREE_VERIFY`) or have a value (`@KDTREE_VERIFY=on`): with it
a fault follows the patch, so that the engine without the patch, after a rollback, is well again. The file wins over the
variable, which wins over --fault.
"""
from __future__ import annotations

import os
import threading

NAMES = {
    "slow_start", "crash_load", "crash_capture", "oom", "never_healthy", "hang", "unhealthy", "wrong_kernel",
    "kernel_raises", "slow_kernel", "logit_cap", "few_experts", "dead_rank", "dead_rank_unnoticed", "stuck_rank", "slow_stop",
    "slow_stream",
}


class FaultError(ValueError):
    """A fault that is spelled wrongly; the text says which and what exists."""


def parse(text: str) -> dict[str, list[str]]:
    """Fault text -> {name: arguments} of those whose condition holds in this process."""
    found: dict[str, list[str]] = {}
    for item in text.replace("\n", ",").split(","):
        item = item.strip()
        if not item:
            continue
        spec, _, condition = item.partition("@")
        name, *arguments = spec.split(":")
        if name not in NAMES:
            raise FaultError(f"fault '{name}' is not known; there are {', '.join(sorted(NAMES))}")
        variable, wants_value, value = condition.partition("=")
        if condition and (variable not in os.environ or (wants_value and os.environ[variable] != value)):
            continue
        found[name] = arguments
    return found


class Faults:
    """The faults in force now. Cheap to ask at every step: the file is read again only when it has changed."""

    def __init__(self, flag: str = ""):
        self._static = parse(os.environ.get("TEST_ENGINE_FAULT", "") or flag)
        self._path = os.environ.get("TEST_ENGINE_FAULT_FILE", "")
        self._stamp: tuple[int, int, int] | None = None
        self._from_file: dict[str, list[str]] | None = None
        self._lock = threading.Lock()

    def _current(self) -> dict[str, list[str]]:
        if not self._path:
            return self._static
        with self._lock:
            try:
                status = os.stat(self._path)
            except FileNotFoundError:
                self._stamp, self._from_file = None, None
                return self._static
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
            if stamp != self._stamp:
                with open(self._path, encoding="utf-8") as file:
                    self._from_file = parse(file.read())
                self._stamp = stamp
            return self._static if self._from_file is None else self._from_file

    def get(self, name: str) -> list[str] | None:
        """Arguments of the fault, or None where it is not in force."""
        return self._current().get(name)

    def number(self, name: str, default: float) -> float | None:
        """First argument as a number (`default` where it has none), or None where the fault is not in force."""
        arguments = self.get(name)
        if arguments is None:
            return None
        return float(arguments[0]) if arguments and arguments[0] else default

    def hits(self, name: str, rank: int) -> list[str] | None:
        """Arguments after the rank where the fault is in force for `rank`: `name` = every rank, `name:RANK` = one."""
        arguments = self.get(name)
        if arguments is None or (arguments and arguments[0] not in ("", str(rank))):
            return None
        return arguments[1:]
