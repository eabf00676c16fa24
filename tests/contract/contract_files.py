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
    """The agent's metrics by name: type, unit, labels, help, absent, cost, example. A histogram is there by its series' names too."""
    listed = {metric["name"]: metric for metric in json.loads(output(program("kdtree-agent"), "--list-metrics=json"))["metrics"]}
    for metric in [metric for metric in listed.values() if metric["type"] == "histogram"]:
        for part, labels in (("bucket", ["le"]), ("sum", []), ("count", [])):
            listed[f"{metric['name']}_{part}"] = {**metric, "type": "counter", "labels": metric["labels"] + labels}
    return listed


def _rules() -> list[dict]:
    return [rule for group in yaml.safe_load((DASHBOARDS / "rules.yml").read_text())["groups"] for rule in group["rules"]]


@functools.cache
def alerts() -> dict[str, dict]:
    """The alerts of rules.yml by name."""
    rules = [rule for rule in _rules() if "alert" in rule]
    named = {rule["alert"]: rule for rule in rules}
    assert len(named) == len(rules), "two rules of one name"
    return named


@functools.cache
def records() -> dict[str, dict]:
    """The recording rules of rules.yml by name."""
    return {rule["record"]: rule for rule in _rules() if "record" in rule}


def rule_tests() -> list[dict]:
    """The test groups of rules.test.yml."""
    return yaml.safe_load((DASHBOARDS / "rules.test.yml").read_text())["tests"]


BOARDS = ["kdtree-host", "kdtree-moe", "kdtree-verify"]


@functools.cache
def dashboard(board: str) -> dict:
    return json.loads((DASHBOARDS / f"{board}.json").read_text())


def panels(board: str) -> list[dict]:
    """Every panel that shows something; rows left out."""
    return [panel for panel in dashboard(board)["panels"] if panel["type"] != "row"]


def all_panels() -> list[tuple[str, dict]]:
    """(dashboard, panel) of every panel."""
    return [(board, panel) for board in BOARDS for panel in panels(board)]


def queries() -> list[tuple[str, str, dict]]:
    """(panel title, refId, target) of every query."""
    return [(panel["title"], target["refId"], target) for _, panel in all_panels() for target in panel["targets"]]


def runbooks() -> list[Path]:
    return sorted(RUNBOOKS.glob("*.md"))


def metrics_in(text: str) -> set[str]:
    """Metric names mentioned in a query or a page, the packages' names left out."""
    return set(METRIC.findall(text)) - NOT_METRICS


def tracked() -> list[Path]:
    """The files of the project: tracked by git and there."""
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]
