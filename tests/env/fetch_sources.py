# SPDX-License-Identifier: Apache-2.0
"""Fetches SGLang's source, without installing it: python3 fetch_sources.py FOLDER LOCK | FOLDER --newest

Each release becomes FOLDER/<version>/sglang (all but its binaries) beside its dist-info. What is there already, by the lock's
hash, is not fetched again. --newest: the newest release of the package index, whatever its hash, as FOLDER/newest/sglang;
prints that folder.
Exit status 1 if a release can't be fetched."""
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

# One wheel for everybody: the hashes of the lock are those of this platform's.
WHEEL = ("--no-deps", "--only-binary", ":all:", "--python-version", "3.11", "--implementation", "cp", "--platform",
         "manylinux_2_34_x86_64", "--no-cache-dir", "--progress-bar", "off", "--quiet", "--disable-pip-version-check")


def say(text: str) -> None:
    print(f"setup: {text}", file=sys.stderr, flush=True)


def fetch(requirement: str, place: Path, mark: str) -> None:
    """Downloads, unpacks, puts in place at once. Errors: CalledProcessError, OSError."""
    folder = place.parent
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as scratch:
        wanted = Path(scratch) / "wanted.txt"
        wanted.write_text(requirement + "\n")
        subprocess.run([sys.executable, "-m", "pip", "download", *WHEEL, "--dest", scratch, "-r", str(wanted)], check=True)
        wheel = next(Path(scratch).glob("*.whl"))
        unpacked = Path(scratch) / "unpacked"
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(unpacked, [name for name in archive.namelist() if not name.endswith((".so", ".co"))])
        (unpacked / ".complete").write_text(mark + "\n")
        shutil.rmtree(place, ignore_errors=True)
        unpacked.rename(place)


def is_there(folder: Path, version: str, mark: str) -> bool:
    try:
        return (folder / version / ".complete").read_text().strip() == mark
    except OSError:
        return False


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    folder = Path(arguments[0])
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if arguments[1] == "--newest":
            fetch("sglang", folder / "newest", "newest")
            print(folder / "newest" / "sglang")
            return 0
        for line in Path(arguments[1]).read_text().splitlines():
            pinned = re.fullmatch(r"(sglang==(\S+) --hash=sha256:([0-9a-f]{64}))  # (.+)", line)
            if pinned and not is_there(folder, pinned[2], pinned[3]):
                say(f"source of SGLang {pinned[2]}: {pinned[4]} to download")
                fetch(pinned[1], folder / pinned[2], pinned[3])
    except subprocess.CalledProcessError:
        say("pip could not fetch SGLang's source; see its message above")
        return 1
    except OSError as error:
        say(f"can't keep SGLang's source: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
