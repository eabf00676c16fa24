# SPDX-License-Identifier: Apache-2.0
"""How kdtree would find other releases of SGLang: python3 tests/contract/engine_report.py [PACKAGE_FOLDER ...]

Without a folder: the newest release, as `tests/env/setup.sh --newest-source` fetched it. For each: known, unknown or not
patchable, what kdtree would do without, and the differences that an operator would be shown. A report: exit status 0
whatever it says, 1 where there is no such source."""

from __future__ import annotations

import sys
from pathlib import Path

from engine_sources import folder

from kdtree_patch import bind, fingerprint
from kdtree_patch.source import Source


def report(package: Path) -> None:
    engine = fingerprint.examine(str(package))
    judged = ("known: patched" if engine.known else "unknown: refused until the operator accepts it" if engine.binds
              else "not patchable: refused, accepted or not")
    print(f"SGLang {engine.version or 'of unknown version'}: {judged}\n  fingerprint {engine.fingerprint}")
    lacks = bind.unmet(Source(str(package)))
    for title, lines in (("can't do without", [lack.what for lack in lacks if not lack.without]),
                         ("does without", [f"{lack.what}: {lack.without}" for lack in lacks if lack.without]),
                         ("differs", [line for line in engine.differences if " (compared with " in line])):
        if lines:
            print(f"  {title}:", *lines, sep="\n    ")


def main(arguments: list[str]) -> int:
    packages = [Path(given).resolve() for given in arguments] or [folder("newest")]
    for package in packages:
        if not package.is_dir():
            print(f"engine_report: {package} is no folder; give the sglang folder of an unpacked wheel", file=sys.stderr)
            return 1
        report(package)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except AssertionError as error:
        print(f"engine_report: {error} (or 'tests/env/setup.sh --newest-source')", file=sys.stderr)
        sys.exit(1)
