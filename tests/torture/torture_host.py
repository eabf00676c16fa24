# SPDX-License-Identifier: Apache-2.0
"""A throw-away host for thousands of runs: an engine of two ranks, kdtreectl stopped where one wants, folders that are put
back in place of a reboot."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Sequence

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "host"))

from kdtree_host import HEALTH, PORT, PYTHON, UNIT, KdtreeHost, engine_unit  # noqa: E402,F401
from machine import Bind  # noqa: E402
from package import build_folder  # noqa: E402

import tree  # noqa: E402

RANKS = 2
DROP_IN = f"/etc/systemd/system/{UNIT}.d/60-kdtree.conf"
CONTROL = "/run/kdtree/control"
REVERT = "kdtree-revert"
# What kdtreectl may change on a disk.
FOLDERS = ("/etc/systemd/system", "/etc/kdtree", "/opt/kdtree", "/var/lib/kdtree")
TOOLS = "/opt/torture"  # stop_at and the planted bugs, read-only
LOG = "/run/torture.log"
MODES = ("off", "validate", "on")
# Calls that may need another block.
GROWING = {"openat", "open", "creat", "write", "pwrite64", "writev", "mkdir", "mkdirat", "symlink", "symlinkat", "link", "linkat",
           "rename", "renameat", "renameat2", "fsync", "fdatasync", "fallocate", "sendfile", "copy_file_range"}
COMMAND = (f"{PYTHON} -m sglang.launch_server --model-path /models/kimi-k2.6 --tp-size {RANKS} --port 30000 "
           "--attention-backend triton --steps-per-second 5 --mem-fraction-static 0.94")
SETTINGS: dict[str, Any] = {"engine": {"ranks": RANKS}, "deadlines": {"healthy_s": 120, "stop_s": 60, "stable_s": 0}}
PATIENCE_S = 120  # a loaded machine is no finding


@dataclass(frozen=True)
class Point:
    """One call of a run that changes something: its number there, the call, what it is about."""

    number: int
    call: str
    about: str

    @property
    def on_bus(self) -> bool:
        return self.call in ("sendmsg", "sendto", "writev") and not self.about.startswith(("/", "POST"))

    @property
    def takes_space(self) -> bool:
        """Can it fail for want of space on a disk?"""
        return self.call in GROWING and not self.about.startswith(("/run/", "/proc/"))

    @property
    def label(self) -> str:
        """The same in every trace of the same verb: without pids, times and digests."""
        return re.sub(r"[0-9a-f]{8,}|\d+", "N", f"{self.call} {self.about}")

    def __str__(self) -> str:
        return f"{self.number} {self.call} {self.about}"


@dataclass(frozen=True)
class Stopped:
    """How a run under stop_at ended. `rc` None: killed. `hit`: the point was reached."""

    rc: int | None
    out: str
    err: str
    points: tuple[Point, ...]
    hit: bool


class TortureHost(KdtreeHost):
    def __init__(self, layers: Sequence[Path], disk: Path | None = None) -> None:
        tools = build_folder() / "tests" / "torture"
        super().__init__(layers=layers, binds=[Bind(tools, TOOLS)])
        self.disk = disk

    def prepare(self) -> None:
        """Configuration, a running engine that boots with the host, nothing of kdtree deployed."""
        self.configure(**SETTINGS)
        self.install_engine(engine_unit(COMMAND))
        self.systemctl("enable", UNIT).check()

    # The host's folders.

    def take(self) -> tree.Tree:
        return tree.take(self.path("/"), FOLDERS)

    def put(self, wanted: tree.Tree) -> set[str]:
        return tree.put(self.path("/"), FOLDERS, wanted)

    def sync(self) -> None:
        """Everything that was written so far survives a power cut."""
        self.run(["sync", "-f", "/var/lib"]).check()

    def restart_engine(self) -> None:
        """The engine anew, from the files that are there, in the mode that they say."""
        self.fault()
        self.systemctl("stop", UNIT).check()
        self.path(CONTROL).unlink(missing_ok=True)
        self.systemctl("daemon-reload").check()
        self.systemctl("reset-failed", UNIT)
        self.systemctl("start", UNIT).check()
        self.wait_healthy()

    def arm_timer(self) -> None:
        """As a change that is on trial has it, but for what it does: the timer that PID 1 keeps."""
        if not self.timer_there():
            self.run(["systemd-run", f"--unit={REVERT}", "--on-active=1h", "true"]).check()

    def stop_timer(self) -> None:
        if self.timer_there():
            self.systemctl("stop", f"{REVERT}.timer").check()

    def timer_there(self) -> bool:
        return self.path(f"/run/systemd/transient/{REVERT}.timer").exists()

    # The engine, as it is.

    def wait_healthy(self, timeout: float = PATIENCE_S) -> None:
        """Looks cheaply until somebody listens, then asks."""
        until = time.monotonic() + timeout
        look_again = time.monotonic() + 5  # for a unit that has failed
        while not self._listens() and time.monotonic() < min(until, look_again):
            time.sleep(0.1)
        super().wait_healthy(max(until - time.monotonic(), 1))

    def _listens(self) -> bool:
        for table in ("tcp", "tcp6"):
            rows = self.path("/proc/1/net").joinpath(table).read_text().splitlines()[1:]
            if any(row.split()[1].endswith(f":{PORT:04X}") and row.split()[3] == "0A" for row in rows):
                return True
        return False

    def environment(self) -> dict[str, str]:
        """As KdtreeHost's, without a command in the host: of the child of systemd that the engine's command line belongs to."""
        for pid in Path(f"/proc/{self.leader}/task/{self.leader}/children").read_text().split():
            with contextlib.suppress(OSError):
                if b"sglang.launch_server" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    text = Path(f"/proc/{pid}/environ").read_text(errors="replace")
                    return dict(line.split("=", 1) for line in text.split("\0") if "=" in line)
        return {}

    def engine_mode(self) -> str | None:
        """The mode that every rank is in; None where the engine runs without kdtree; "mixed" where ranks differ or are
        silent."""
        environment = self.environment()
        if "KDTREE_VERIFY" not in environment:
            return None
        modes = {MODES[values["mode"]] for values in self.ranks().values() if values["patch_state"] == 1}
        return modes.pop() if len(modes) == 1 and len(self.ranks()) == RANKS else "mixed"

    def control_mode(self) -> str | None:
        """What the control file asks the ranks for; None: there is none."""
        if not self.path(CONTROL).exists():
            return None
        return MODES[int.from_bytes(self.path(CONTROL).read_bytes()[12:16], "little")]

    # kdtreectl, stopped.

    def traced(self, argv: Sequence[str], *, at: int = 0, fault: str = "", extra: Sequence[str] = (),
               preload: str = "", timeout: float = 5 * PATIENCE_S) -> Stopped:
        """Runs kdtreectl to its end, or into `fault` at its `at`-th change; `extra` is for stop_at."""
        done = self.run(self._command(argv, at, fault, extra), timeout=timeout, env=_preloaded(preload))
        return self._stopped(done.rc, done.out, done.err)

    def hold(self, argv: Sequence[str], at: int, extra: Sequence[str] = (), preload: str = "") -> "Held":
        """Starts kdtreectl and waits until it is held before its `at`-th change, or has ended before."""
        job = self.start(self._command(argv, at, "hold", extra), stdin=subprocess.PIPE, env=_preloaded(preload))
        return Held(self, job, job.stdout.readline().strip() == "held")

    def _command(self, argv: Sequence[str], at: int, fault: str, extra: Sequence[str]) -> list[str]:
        where = ["--at", str(at), "--fault", fault] if at else []
        return [f"{TOOLS}/stop_at", "--log", LOG, *where, *extra, "--", "kdtreectl", *argv]

    def _stopped(self, rc: int, out: str, err: str) -> Stopped:
        points, hit = [], False
        for line in self.read(LOG).splitlines():
            number, _, rest = line.partition(" ")
            if number == "hit":
                hit = True
                continue
            call, _, about = rest.partition(" ")
            points.append(Point(int(number), call, about))
        return Stopped(None if rc == 137 else rc, out, err, tuple(points), hit)

    def is_closed(self) -> bool:
        return not self.path("/var/lib/kdtree/journal/active").exists()


class Held:
    """A kdtreectl that stands still before a change, or has ended without coming to it (`there` is False)."""

    def __init__(self, host: TortureHost, job: subprocess.Popen, there: bool) -> None:
        self._host, self._job, self.there = host, job, there

    def kill(self) -> Stopped:
        out, err = self._job.communicate("\n" if self.there else None, timeout=5 * PATIENCE_S)
        return self._host._stopped(self._job.returncode, out, err)

    def forget(self) -> None:
        """After the host has gone."""
        self._job.kill()
        self._job.communicate()


def _preloaded(library: str) -> dict[str, str]:
    return {"LD_PRELOAD": f"{TOOLS}/{library}"} if library else {}
