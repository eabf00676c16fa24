# SPDX-License-Identifier: Apache-2.0
"""How kdtree would find other builds of SGLang: python3 tests/contract/engine_report.py PACKAGE_FOLDER...

For each sglang folder (`make engine-report` gives that of the newest release): known, unknown or not patchable, what
kdtree would do without, and the differences that an operator would be shown. A report: exit status 0 whatever it says, 2
where there is no such folder."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "sitecustomize"))
from kdtree_patch import bind, fingerprint  # noqa: E402
from kdtree_patch.source import Source  # noqa: E402


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
    packages = [Path(given).resolve() for given in arguments]
    if not packages or not all((package / "srt").is_dir() for package in packages):
        print("engine_report: give the sglang folder of an unpacked wheel or of an environment", file=sys.stderr)
        return 2
    for package in packages:
        report(package)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
