# SPDX-License-Identifier: Apache-2.0
"""Fails if a kernel spills registers or needs more shared memory than an sm_120 block has.

    python check_ptxas.py BUILD_FOLDER [ARCH ...]     default: sm_90 sm_120

Reads the *.ptxas reports that the build leaves (ptxas -v) for static shared memory, stack and spills; the split kernel's
dynamic shared memory is held below the limit by a static_assert beside its layout.
"""

import re
import sys
from pathlib import Path

SHARED_LIMIT = 101_376
ENTRY = re.compile(r"Compiling entry function '(?P<name>[^']+)' for '(?P<arch>sm_\d+)'")
SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")


def kernels(report: str) -> list[dict]:
    """One dict a kernel and architecture: name, arch, registers, shared, stack, spills (bytes)."""
    found: list[dict] = []
    for line in report.splitlines():
        if match := ENTRY.search(line):
            found.append(match.groupdict() | {"registers": -1, "shared": 0, "stack": -1, "spills": -1})
        elif found and (match := SPILLS.search(line)) and found[-1]["stack"] < 0:
            found[-1]["stack"], found[-1]["spills"] = int(match[1]), int(match[2]) + int(match[3])
        elif found and (match := USED.search(line)):
            found[-1]["registers"] = int(match[1])
            found[-1]["shared"] = int(shared[1]) if (shared := SHARED.search(line)) else 0
    return found


def problems(report: str, arch_names: list[str]) -> list[str]:
    """What is wrong in one report; an architecture without any kernel, or a line not understood, is wrong too."""
    found = kernels(report)
    wrong = [f"no kernel was compiled for {arch}" for arch in arch_names if not any(k["arch"] == arch for k in found)]
    for k in found:
        where = f"{k['name']} on {k['arch']}"
        if k["registers"] < 0 or k["spills"] < 0:
            wrong.append(f"{where}: ptxas said nothing about registers or spills")
        if k["spills"] > 0 or k["stack"] > 0:
            wrong.append(f"{where}: {k['spills']} bytes of spills, {k['stack']} bytes of stack ({k['registers']} registers)")
        if k["shared"] > SHARED_LIMIT:
            wrong.append(f"{where}: {k['shared']} bytes of shared memory, at most {SHARED_LIMIT} are there")
    return wrong


def main() -> int:
    """Prints one line a problem, or a summary; exit status 0 only without problems."""
    reports = sorted(Path(sys.argv[1]).glob("*.ptxas"))
    arch_names = sys.argv[2:] or ["sm_90", "sm_120"]
    wrong = [f"{path.name}: {line}" for path in reports for line in problems(path.read_text(), arch_names)
             if not (path.name == "verify_attn.ptxas" and line.startswith("no kernel"))]
    if not reports:
        wrong = [f"{sys.argv[1]}: no *.ptxas report; was it built with KDTREE_WITH_CUDA=ON?"]
    for line in wrong:
        print(line, file=sys.stderr)
    if not wrong:
        found = [k for path in reports for k in kernels(path.read_text())]
        print(f"{len(found)} kernels, no spills, at most {max(k['registers'] for k in found)} registers")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
