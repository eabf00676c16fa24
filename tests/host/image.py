# SPDX-License-Identifier: Apache-2.0
"""The Debian 12 root of the throw-away host: made once by debootstrap, kept in the cache folder under its recipe's hash."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SUITE = "bookworm"
MIRROR = os.environ.get("KDTREE_DEBIAN_MIRROR", "http://deb.debian.org/debian")
# What an engine host has before kdtree comes: systemd, the engine's Python, a compiler for `kdtreectl deploy`, and the
# libraries that kdtree's package depends on.
PACKAGES = (
    "systemd systemd-sysv dbus python3 curl ca-certificates procps iproute2 util-linux g++ cmake ninja-build "
    "libcurl4 libssl3 libsystemd0 libprometheus-cpp-core1.0 libmicrohttpd12 zlib1g"
).split()
# Run with the root's path as $1 after debootstrap: what makes one boot of a container quick and quiet.
FINISH = r"""
set -e
rm -rf "$1"/var/cache/apt/archives/*.deb "$1"/var/lib/apt/lists/* "$1"/usr/share/doc/* "$1"/usr/share/locale/*
ln -sf /dev/null "$1"/etc/systemd/system/console-getty.service
ln -sf /dev/null "$1"/etc/systemd/system/systemd-logind.service
ln -sf /dev/null "$1"/etc/systemd/system/apt-daily.timer
ln -sf /dev/null "$1"/etc/systemd/system/apt-daily-upgrade.timer
ln -sf /dev/null "$1"/etc/systemd/system/e2scrub_all.timer
ln -sf /dev/null "$1"/etc/systemd/system/fstrim.timer
ln -sf /dev/null "$1"/etc/systemd/system/dpkg-db-backup.timer
echo throwaway >"$1"/etc/hostname
echo 127.0.0.1 localhost throwaway >"$1"/etc/hosts
echo 0123456789abcdef0123456789abcdef >"$1"/etc/machine-id
"""


class HostError(RuntimeError):
    """Why there is no throw-away host, in one line."""


def cache_dir() -> Path:
    """The folder that setup.sh keeps its Python environment in: KDTREE_CACHE, /var/cache/kdtree (root), ~/.cache/kdtree."""
    if os.environ.get("KDTREE_CACHE"):
        return Path(os.environ["KDTREE_CACHE"])
    if os.getuid() == 0:
        return Path("/var/cache/kdtree")
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "kdtree"


def image_path() -> Path:
    recipe = "\n".join([SUITE, *PACKAGES, FINISH])
    return cache_dir() / f"host-{hashlib.sha256(recipe.encode()).hexdigest()[:16]}"


def ensure_image() -> Path:
    """The image's folder, made now (about 90 s, 250 MB of downloads) where it doesn't exist. Progress goes to stderr."""
    image = image_path()
    if image.is_dir():
        return image
    cache_dir().mkdir(parents=True, exist_ok=True)
    with open(f"{image}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a second test run waits here and then finds the image
        if not image.is_dir():
            _make(image)
    return image


def _make(image: Path) -> None:
    _say(f"throw-away Debian 12 host: about 250 MB to download from {MIRROR}, 0.7 GB on disk, 90 s; into {image}")
    partial = Path(tempfile.mkdtemp(prefix=f"{image.name}.partial-", dir=image.parent))
    try:
        partial.chmod(0o755)
        _debootstrap(partial, Path(f"{image}.log"))
        subprocess.run(["sh", "-c", FINISH, "finish", str(partial)], check=True)
        partial.rename(image)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _debootstrap(root: Path, log: Path) -> None:
    argv = ["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", SUITE, str(root), MIRROR]
    stages = {"Retrieving": 0, "Unpacking": 0, "Configuring": 0}
    with open(log, "w") as out, subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as job:
        for line in job.stdout:
            out.write(line)
            found = re.match(r"I: (Retrieving|Unpacking|Configuring) ", line)
            if found:
                stages[found[1]] += 1
                if stages[found[1]] % 40 == 1:
                    _say(f"{found[1].lower()}, package {stages[found[1]]}")
    if job.returncode != 0:
        last = log.read_text().strip().splitlines()[-1:] or ["no output"]
        raise HostError(f"debootstrap failed ({last[0][:200]}); its log is {log}")


def _say(text: str) -> None:
    print(f"setup: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        print(ensure_image())
    except (HostError, OSError) as error:
        sys.exit(f"setup: {error}")
