# SPDX-License-Identifier: Apache-2.0
"""Where the sources of SGLang's releases lie, and copies of the files that kdtree's table names."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
import sys
from pathlib import Path

from contract_files import ROOT

sys.path.insert(0, str(ROOT / "sitecustomize"))
from kdtree_patch import contract, fingerprint  # noqa: E402

LOCK = ROOT / "tests" / "env" / "sglang-sources.lock"
INSTALLED = "0.5.17"  # engine.lock's
VERSIONS = sorted([*re.findall(r"^sglang==(\S+)", LOCK.read_text(), re.M), INSTALLED],
                  key=lambda version: [int(part) for part in version.split(".")])


@functools.cache
def folder(version: str) -> Path:
    """The sglang package of a release, as its wheel has it; fails where `make setup` hasn't fetched it."""
    if version == INSTALLED:
        found = Path(fingerprint.find_package() or "/no-sglang-in-this-python")
    else:
        done = subprocess.run([ROOT / "tests" / "env" / "setup.sh", "--print-sources"], capture_output=True, text=True, check=False)
        found = Path(done.stdout.strip() or "/none") / version / "sglang"
    assert found.is_dir(), f"no source of SGLang {version} at {found}: run 'make setup'"
    return found


def table_files() -> set[str]:
    """Every file that the table names, of any version."""
    places = [entry.place for entry in contract.TABLE if not isinstance(entry, contract.Attributes)]
    places += [place for entry in contract.TABLE if isinstance(entry, contract.Attributes) for place, _ in entry.classes]
    return {file for place in places for file in place}


def copy(version: str, into: Path) -> Path:
    """A package folder with those files of a release, to be changed by a test."""
    package = into / "sglang"
    for file in (*table_files(), "_version.py", "__init__.py"):
        if (folder(version) / file).is_file():
            (package / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(folder(version) / file, package / file)
    return package
