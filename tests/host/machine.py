# SPDX-License-Identifier: Apache-2.0
"""A throw-away Debian 12 host under a real systemd: an overlay over the image, booted by systemd-nspawn.

It has a network of its own (loopback only), leaves nothing behind, and dies with the process that started it, also by
kill -9. Needs root and a kernel that lets it mount and make namespaces; `why_not()` says in one line what is missing.

    machine.py check         say whether a host can run here
    machine.py shell         boot one and open a shell in it
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Iterator, Mapping, Sequence

from image import HostError, ensure_image

BOOT_TIMEOUT_S = 60
# Nothing reaches the disk that was not synced: no flush of a renamed file's data, no commit by the clock.
DISK_OPTIONS = "noauto_da_alloc,commit=3600"
# For a container with users of its own: all files change hands, and only that is written.
GIVEN_AWAY = "metacopy=on,redirect_dir=on,"
FS_IOC_SHUTDOWN, WITHOUT_LOG_FLUSH = 0x8004587D, 2
PREFIX = "kdtree-host-"

# PID 1 of an own PID namespace, so that killing it kills the whole host; the overlay is mounted in an own mount
# namespace, so that nothing remains mounted. Arguments: lower, the folder for what the host writes, merged, the disk to
# mount on that folder or "", then systemd-nspawn's.
_BOOT = r"""
if [ -n "$4" ]; then mount -t ext4 -o "loop,$KDTREE_DISK_OPTIONS" "$4" "$2" || exit 1; fi
mkdir -p "$2/upper" "$2/work" && chmod 755 "$2/upper" || exit 1
mount -t overlay overlay -o "${KDTREE_OVERLAY}lowerdir=$1,upperdir=$2/upper,workdir=$2/work" "$3" || exit 1
root=$3; shift 4
systemd-nspawn -D "$root" -b --register=no --keep-unit --private-network --console=passive "$@"
"""


@dataclass
class Completed:
    """One command's end. `rc` is its exit status, `out` and `err` what it wrote."""

    argv: list[str]
    rc: int
    out: str
    err: str

    def check(self) -> "Completed":
        if self.rc != 0:
            raise AssertionError(f"{' '.join(self.argv)} exited {self.rc}\n{self.out}{self.err}")
        return self


@dataclass(frozen=True)
class Bind:
    """A folder or file of this machine shown read-only at `inside` (the same path where not given)."""

    outside: Path
    inside: str = ""
    writable: bool = False

    def argument(self) -> str:
        option = "--bind" if self.writable else "--bind-ro"
        return f"{option}={self.outside}:{self.inside or self.outside}"


def why_not() -> str | None:
    """Why no throw-away host can run here, in one line; None where it can. Tries the mounts and namespaces, boots nothing."""
    if os.getuid() != 0:
        return "a throw-away systemd host needs root"
    for tool in ("systemd-nspawn", "debootstrap", "nsenter", "unshare", "setpriv"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed; run 'make setup'"
    if not _own_cgroups():
        return "no cgroup hierarchy that systemd could use (neither cgroup2 nor name=systemd is mounted)"
    with tempfile.TemporaryDirectory(prefix="kdtree-try-", dir=_scratch_base()) as scratch:
        for name in ("lower", "upper", "work", "merged"):
            Path(scratch, name).mkdir()
        script = 'mount -t overlay overlay -o "lowerdir=$1/lower,upperdir=$1/upper,workdir=$1/work" "$1/merged"'
        done = subprocess.run(
            ["unshare", "--mount", "--pid", "--net", "--fork", "--kill-child=KILL", "--mount-proc", "--propagation", "private",
             "sh", "-c", script, "try", scratch], capture_output=True, text=True)
    if done.returncode != 0:
        return f"this machine does not allow the mounts or namespaces it takes: {(done.stderr.strip().splitlines() or ['no message'])[-1]}"
    return None


@dataclass
class Machine:
    """Booted by `with Machine(...) as host:`. `layers` are folders laid over the image, the topmost first."""

    binds: Sequence[Bind] = ()
    layers: Sequence[Path] = ()
    name: str = "throwaway"
    options: Sequence[str] = ()  # more arguments for systemd-nspawn
    disk: Path | None = None  # an ext4 image (`make_disk`) that what the host writes lies on; it can lose its power
    leader: int = 0  # PID of its systemd, seen from outside
    _supervisor: subprocess.Popen | None = None
    _scratch: "Scratch | None" = None
    _cgroups: list[Path] = field(default_factory=list)

    def __enter__(self) -> "Machine":
        reason = why_not()
        if reason:
            raise HostError(reason)
        image = ensure_image()
        self._scratch = Scratch()
        try:
            self._boot(image)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()
        if self._scratch is not None:
            self._scratch.remove()
            self._scratch = None

    def _kill(self) -> None:
        if self._supervisor is not None:
            self._supervisor.kill()  # its child is PID 1 of the namespace that everything else lives in
            self._supervisor.wait()
            self._supervisor = None
        self.leader = 0
        for group in self._cgroups:
            _remove_cgroup(group)

    def cut_power(self) -> None:
        """The disk takes nothing any more, its own log included; the host is gone a moment later."""
        written = f"/proc/{self._supervisor.pid}/root{self._scratch.folder}/written"
        disk = os.open(written, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(disk, FS_IOC_SHUTDOWN, struct.pack("=I", WITHOUT_LOG_FLUSH))
        finally:
            os.close(disk)
        self._kill()
        deadline = time.monotonic() + BOOT_TIMEOUT_S
        while subprocess.run(["losetup", "-j", self.disk], capture_output=True, text=True).stdout:
            if time.monotonic() > deadline:
                raise AssertionError(f"{self.disk} is still in use after its host was killed")
            time.sleep(0.02)

    def boot_again(self) -> None:
        """After `cut_power`: the same disk, as it is now."""
        self._boot(ensure_image())

    def power_off(self, keep: Path | None = None) -> None:
        """Shuts the host down in good order; `keep` (new, on the same disk) gets what it wrote: a layer for other hosts."""
        self.systemctl("--no-block", "poweroff")
        try:
            self._supervisor.wait(timeout=BOOT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the host did not shut down in {BOOT_TIMEOUT_S} s") from None
        if keep is not None:
            (self._scratch.folder / "written" / "upper").rename(keep)
        self.__exit__()

    def _boot(self, image: Path) -> None:
        folder = self._scratch.folder
        for name in ("written", "merged"):
            (folder / name).mkdir(exist_ok=True)
        # The folder's name is the cgroup's too, so that a sweep can tell whose it is.
        self._cgroups = [base / folder.name for base in _own_cgroups()]
        for group in self._cgroups:
            group.mkdir()

        def enter_cgroups() -> None:
            for group in self._cgroups:
                (group / "cgroup.procs").write_text("0")

        argv = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc",
                "--propagation", "private", "sh", "-c", _BOOT, "boot", ":".join(map(str, [*self.layers, image])),
                str(folder / "written"), str(folder / "merged"), str(self.disk or ""), f"--machine={self.name}",
                *self.options, *[bind.argument() for bind in self.binds]]
        with open(folder / "console", "w") as console:
            self._supervisor = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=console, stderr=console,
                                                start_new_session=True, preexec_fn=enter_cgroups,
                                                env={**os.environ, "KDTREE_DISK_OPTIONS": DISK_OPTIONS,
                                                     "KDTREE_OVERLAY": GIVEN_AWAY if "-U" in self.options else ""})
        deadline = time.monotonic() + BOOT_TIMEOUT_S
        while not self._booted(deadline):
            if self._supervisor.poll() is not None or time.monotonic() > deadline:
                said = (folder / "console").read_text(errors="replace").strip().splitlines()[-3:]
                raise HostError(f"systemd-nspawn did not boot: {' | '.join(said) or 'it said nothing'}")
            time.sleep(0.02)

    def _booted(self, deadline: float) -> bool:
        if not self.leader:
            self.leader = _inner_init(self._supervisor.pid)
        if not self.leader or not self.path("/run/systemd/private").exists():
            return False
        left = max(deadline - time.monotonic(), 1)
        with contextlib.suppress(TimeoutError):
            state = self.run(["systemctl", "is-system-running", "--wait"], timeout=left).out.strip()
            return state in ("running", "degraded")
        return False

    # Everything below works on a booted host.

    def run(self, argv: Sequence[str], *, timeout: float = 60, env: Mapping[str, str] | None = None, input: str | None = None,
            user: str | None = None) -> Completed:
        """Runs a command in the host and waits at most `timeout` seconds; past that it is killed and TimeoutError raised."""
        argv = [str(arg) for arg in argv]
        with self.start(argv, env=env, user=user, stdin=subprocess.PIPE if input is not None else subprocess.DEVNULL) as job:
            try:
                out, err = job.communicate(input, timeout=timeout)
            except subprocess.TimeoutExpired:
                job.kill()
                out, err = job.communicate()
                raise TimeoutError(f"{' '.join(argv)} took more than {timeout} s\n{out}{err}") from None
        return Completed(argv, job.returncode, out, err)

    def start(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, user: str | None = None,
              stdin: int = subprocess.DEVNULL) -> subprocess.Popen:
        """Starts a command in the host. Killing what is returned kills the command, by SIGKILL."""
        wanted = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin", "LANG": "C.UTF-8", "HOME": "/root", **(env or {})}
        become = ["--reuid", user, "--regid", user, "--init-groups"] if user else []
        return subprocess.Popen(
            ["nsenter", "-t", str(self.leader), "-a", "-w", "setpriv", "--pdeathsig", "KILL", *become,
             "env", "-i", "-C", "/", *[f"{key}={value}" for key, value in wanted.items()], *map(str, argv)],
            stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def in_network(self, argv: Sequence[str]) -> list[str]:
        """`argv` to run on this machine's files but in the host's network: how a Prometheus from outside scrapes it."""
        return ["nsenter", "-t", str(self.leader), "-n", *argv]

    def path(self, inside: str) -> Path:
        """Where a file of the running host (its mounts included) is seen from outside."""
        return Path(f"/proc/{self.leader}/root") / inside.lstrip("/")

    def read(self, inside: str) -> str:
        return self.path(inside).read_text()

    def write(self, inside: str, text: str, mode: int = 0o644) -> None:
        file = self.path(inside)
        missing = [folder for folder in file.parents if not folder.exists()]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(mode)
        root = self.path("/").stat().st_uid  # not 0 in a container with users of its own
        for path in (*missing, file):
            os.chown(path, root, root)

    def systemctl(self, *args: str, timeout: float = 60) -> Completed:
        return self.run(["systemctl", *args], timeout=timeout)

    def show(self, unit: str, *names: str) -> dict[str, str]:
        """`systemctl show`: property → value as systemd prints it. All properties where none is named."""
        wanted = [f"--property={','.join(names)}"] if names else []
        lines = self.systemctl("show", *wanted, unit).check().out.splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)

    def journal(self, *args: str) -> str:
        return self.run(["journalctl", "--no-pager", "-o", "short-monotonic", *args]).out

    def http(self, url: str, timeout_s: float = 5) -> tuple[int, str]:
        """GET from inside: (status, body); status 0 = nobody answered."""
        done = self.run(["curl", "-s", "-m", str(timeout_s), "-w", "\n%{http_code}", url], timeout=timeout_s + 5)
        body, _, status = done.out.rpartition("\n")
        return (int(status) if done.rc == 0 else 0), body

    def wait(self, what: str, ready, timeout: float = 30, every: float = 0.05):
        """Asks `ready()` until it answers something true and returns that; AssertionError past `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while True:
            answer = ready()
            if answer:
                return answer
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {timeout} s: {what}")
            time.sleep(every)


def make_disk(image: Path, megabytes: int = 512) -> Path:
    """An empty ext4 filesystem in a sparse file."""
    with open(image, "xb") as file:
        file.truncate(megabytes << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
    return image


class Scratch:
    """A folder on a disk that overlayfs can write to. It goes when it is removed, or with the next sweep after its
    owner has died."""

    def __init__(self) -> None:
        with open(_scratch_base() / f".{PREFIX}lock", "w") as sweeping:
            fcntl.flock(sweeping, fcntl.LOCK_EX)
            sweep()
            self.folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=_scratch_base()))
            self._lock = open(self.folder / "lock", "w")
            fcntl.flock(self._lock, fcntl.LOCK_EX)

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self._lock.close()


def sweep() -> None:
    """Removes what hosts of killed runs left: their folders and cgroups (they hold no process and no mount)."""
    for folder in _scratch_base().glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError), open(folder / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for base in _own_cgroups():
                _remove_cgroup(base / folder.name)
            shutil.rmtree(folder, ignore_errors=True)


def _scratch_base() -> Path:
    """Not /tmp, which may be a tmpfs (no trusted xattrs on older kernels) or an overlay."""
    folder = Path("/var/tmp")
    folder.mkdir(exist_ok=True)
    return folder


def _own_cgroups() -> list[Path]:
    """This process's cgroup in each hierarchy that systemd manages (cgroup2, and v1's name=systemd)."""
    own = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        own[controllers] = path
    found = []
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, where, kind, options = line.split()[:4]
        name = "" if kind == "cgroup2" else "name=systemd" if kind == "cgroup" and "name=systemd" in options.split(",") else None
        if name in own and not any(part.startswith(PREFIX) for part in own[name].split("/")):
            found.append(Path(where) / own[name].lstrip("/"))
    return found


def _remove_cgroup(group: Path) -> None:
    deadline = time.monotonic() + 5
    while group.is_dir():
        for folder, _, _ in os.walk(group, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(folder)
        if time.monotonic() > deadline:
            return
        if group.is_dir():
            time.sleep(0.02)


def _inner_init(supervisor: int) -> int:
    """The PID of the booted systemd: the descendant that is PID 1 two PID namespaces below ours. 0 = not there yet."""
    for pid in _descendants(supervisor):
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{pid}/status").read_text()
            nested = next(line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:"))
            if len(nested) == 3 and nested[2] == "1" and status.startswith("Name:\tsystemd\n"):
                return pid
    return 0


def _descendants(pid: int) -> Iterator[int]:
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            yield int(child)
            yield from _descendants(int(child))


def main() -> int:
    what = sys.argv[1] if len(sys.argv) > 1 else ""
    if what == "check":
        reason = why_not()
        print(reason or "a throw-away host can run here")
        return 1 if reason else 0
    if what == "shell":
        with Machine() as host:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            return subprocess.run(["nsenter", "-t", str(host.leader), "-a", "bash", "-l"]).returncode
    print(__doc__)
    return 2


if __name__ == "__main__":
    try:
        sys.exit(main())
    except HostError as error:
        sys.exit(f"machine: {error}")
