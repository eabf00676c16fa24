# SPDX-License-Identifier: Apache-2.0
"""The commands of the runbooks, and the alerts' rules with their times shrunk, for tests that make each fault happen."""

from __future__ import annotations

import re
from pathlib import Path

from contract_files import DASHBOARDS

_PROGRAMS = ("kdtreectl|promtool|curl|systemctl|journalctl|systemd-tmpfiles|systemd-analyze|ls|df|ps|mv|lspci|nvidia-smi|"
             "nvidia-bug-report.sh")


def indented(page: Path) -> list[str]:
    """The command lines of a page."""
    return [line.strip() for line in page.read_text().splitlines() if re.match(r"    +\S", line)]


def commands(page: Path) -> list[str]:
    """Every command: indented lines, and `code` that begins with a program and has an argument."""
    spans = re.findall(rf"`((?:{_PROGRAMS}) [^`]+)`", page.read_text().replace("\n", " "))
    return indented(page) + [re.sub(r" +", " ", span) for span in spans]


def on_hardware(page: Path) -> set[str]:
    """What the page marks as of use on real hardware alone: the programs' names."""
    found = re.search(r"^<!-- on real hardware alone: (.+) -->$", page.read_text(), re.M)
    return set(found.group(1).split(", ")) if found else set()


def quick_rules(window: str) -> str:
    """dashboards/rules.yml with every `for:` a second, and every range and age as long as `window` (say 4s)."""
    text = (DASHBOARDS / "rules.yml").read_text()
    for usual, short in (("[6h] offset 30m", f"[15s] offset {window}"), ("[10m]", f"[{window}]"), ("[5m]", f"[{window}]"),
                         ("offset 10m", f"offset {window}"), ("< 900", f"< {window.rstrip('s')}")):
        assert usual in text, usual
        text = text.replace(usual, short)
    return re.sub(r"for: \d+m", "for: 1s", text)
