# SPDX-License-Identifier: Apache-2.0
"""What the contract tests read: rules, their tests, dashboard, runbooks, the metric catalogue, the built programs."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
DASHBOARDS = ROOT / "dashboards"
RUNBOOKS = ROOT / "runbooks"
INSTALLED_RUNBOOKS = "/usr/share/kdtree/runbooks"

METRIC = re.compile(r"\bkdtree_[a-z0-9_]+\b")
# Names with the prefix that are no metrics: Python packages, build targets.
NOT_METRICS = {"kdtree_patch", "kdtree_kernel"}


def program(name: str) -> Path:
    """A built program, from KDTREE_BUILD (as `make test` sets it), else from build/gpu or build/dev."""
    given = os.environ.get("KDTREE_BUILD")
    builds = [Path(given)] if given else [ROOT / "build/gpu", ROOT / "build/dev"]
    for build in builds:
        for found in (build / "agent" / name, *build.glob(f"*/{name}")):
            if found.is_file() and os.access(found, os.X_OK):
                return found
    raise AssertionError(f"no {name} in {' or '.join(map(str, builds))}: run 'make build', or name a build in KDTREE_BUILD")


def library(name: str) -> Path:
    """A built shared library, searched in the whole build folder that has kdtree-agent."""
    build = program("kdtree-agent").parents[1]
    found = sorted(build.rglob(name))
    assert found, f"no {name} under {build}: build with KDTREE_WITH_TESTS=ON"
    return found[0]


def output(*argv: str | Path) -> str:
    """Standard output of a command that must succeed."""
    done = subprocess.run([str(a) for a in argv], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{argv}: exit {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


@functools.cache
def catalogue() -> dict[str, dict]:
    """The agent's metrics by name: type, unit, labels, help, absent."""
    listed = json.loads(output(program("kdtree-agent"), "--list-metrics=json"))
    return {metric["name"]: metric for metric in listed["metrics"]}


@functools.cache
def alerts() -> dict[str, dict]:
    """The alerts of rules.yml by name."""
    groups = yaml.safe_load((DASHBOARDS / "rules.yml").read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert all("alert" in rule for rule in rules), "recording rules need tests of their own here"
    named = {rule["alert"]: rule for rule in rules}
    assert len(named) == len(rules), "two rules of one name"
    return named


def rule_tests() -> list[dict]:
    """The test groups of rules.test.yml."""
    return yaml.safe_load((DASHBOARDS / "rules.test.yml").read_text())["tests"]


@functools.cache
def dashboard() -> dict:
    return json.loads((DASHBOARDS / "kdtree.json").read_text())


def panels() -> list[dict]:
    """Every panel that shows something; rows left out."""
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def queries() -> list[tuple[str, str, dict]]:
    """(panel title, refId, target) of every query."""
    return [(panel["title"], target["refId"], target) for panel in panels() for target in panel["targets"]]


def runbooks() -> list[Path]:
    return sorted(RUNBOOKS.glob("*.md"))


def metrics_in(text: str) -> set[str]:
    """Metric names mentioned in a query or a page, the packages' names left out."""
    return set(METRIC.findall(text)) - NOT_METRICS


def tracked() -> list[Path]:
    """The files of the project: tracked by git and there."""
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]
