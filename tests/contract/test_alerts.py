# SPDX-License-Identifier: Apache-2.0
"""Alerts: valid, each tested firing, quiet and without data by promtool, each with a runbook, on metrics that exist."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from contract_files import BOARDS, DASHBOARDS, INSTALLED_RUNBOOKS, RUNBOOKS, alerts, catalogue, metrics_in, output, records, rule_tests

NAMES = sorted(alerts())
SYNTHETIC = {"up"}  # Prometheus' own


def engine_metrics(record: str) -> set[str]:
    """SGLang's own that a recording rule reads, as our tests spell them."""
    return {f"sglang:{name}" for name in re.findall(r'"sglang\[:_\](\w+)"', records()[record]["expr"])}


def read_metrics(alert: str) -> set[str]:
    """What the alert's expression reads."""
    expression = alerts()[alert]["expr"]
    recorded = {name for name in records() if name in expression}
    return metrics_in(expression) | {name for record in recorded for name in engine_metrics(record)} | {name for name in SYNTHETIC if re.search(rf"\b{name}\b", expression)}


def given_metrics(group: dict) -> dict[str, set[str]]:
    """Metric names by instance."""
    given: dict[str, set[str]] = {}
    for series in group["input_series"]:
        name, labels = re.fullmatch(r"([a-z0-9_:]+)\{(.*)\}", series["series"]).groups()
        given.setdefault(re.search(r'instance="([^"]+)"', labels).group(1), set()).add(name)
    return given


def lacks_something(group: dict, alert: str) -> bool:
    """An instance without a metric that the alert reads, or with one that ends."""
    ends = any(gap in series["values"] for series in group["input_series"] for gap in ("stale", "_x"))
    return ends or any(not read_metrics(alert) <= names for names in given_metrics(group).values())


def groups(alert: str, kind: str) -> list[dict]:
    return [group for group in rule_tests() if group["name"].split(":")[0] == f"{alert} {kind}"]


def expectations(group: dict, alert: str) -> list[list]:
    return [case["exp_alerts"] for case in group["alert_rule_test"] if case["alertname"] == alert]


def test_rules_and_configuration_are_valid() -> None:
    output("promtool", "check", "rules", DASHBOARDS / "rules.yml")
    output("promtool", "check", "config", DASHBOARDS / "prometheus.yml")
    output("promtool", "check", "config", "--syntax-only", DASHBOARDS / "prometheus-remote.yml")


def test_records_are_ours_tested_and_used() -> None:
    boards = "".join((DASHBOARDS / f"{board}.json").read_text() for board in BOARDS)
    for name in records():
        assert re.fullmatch(r"kdtree:[a-z_]+:[a-z0-9_]+", name)
        assert any(group["name"].startswith(f"{name} record:") for group in rule_tests()), name
        assert name in boards or any(name in rule["expr"] for rule in alerts().values()), name


def test_promtool_agrees_with_every_case() -> None:
    output("promtool", "test", "rules", DASHBOARDS / "rules.test.yml")


def test_every_case_belongs_to_an_alert() -> None:
    for group in rule_tests():
        name, kind = group["name"].split(": ")[0].split()
        assert name in NAMES and kind in ("fires", "quiet", "missing") or name in records() and kind == "record", group["name"]


@pytest.mark.parametrize("alert", NAMES)
def test_alert_has_the_three_cases(alert: str) -> None:
    firing, quiet, missing = (groups(alert, kind) for kind in ("fires", "quiet", "missing"))
    assert firing and quiet and missing
    assert all(any(expectations(group, alert)) for group in firing)
    assert not any(any(expectations(group, alert)) for group in quiet + missing)
    complete = [names for group in quiet for names in given_metrics(group).values() if read_metrics(alert) <= names]
    assert complete, "a quiet case must give all that is read"
    assert any(lacks_something(group, alert) for group in missing), "a missing case must lack something that is read"


@pytest.mark.parametrize("alert", NAMES)
@pytest.mark.parametrize("broken", ["vector(1) < 0", "({expr}) or on () vector(1)"], ids=["never fires", "always fires"])
def test_the_cases_would_notice(alert: str, broken: str, tmp_path: Path) -> None:
    """A rule that never fires, or always, fails its promtool cases."""
    rules = yaml.safe_load((DASHBOARDS / "rules.yml").read_text())
    (ours,) = [group for group in rules["groups"] if group["name"] == "kdtree"]
    shared = [group for group in rules["groups"] if group["name"] != "kdtree"]
    rule = next(rule for rule in ours["rules"] if rule["alert"] == alert)
    rule["expr"] = broken.format(expr=rule["expr"])
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [*shared, {"name": "kdtree", "rules": [rule]}]}))
    mine = [group for group in rule_tests() if group["name"].startswith(alert + " ")]
    for group in mine:
        group["alert_rule_test"] = [case for case in group["alert_rule_test"] if case["alertname"] == alert]
    tests = {"rule_files": ["rules.yml"], "evaluation_interval": "15s", "tests": mine}
    (tmp_path / "test.yml").write_text(yaml.safe_dump(tests))
    done = subprocess.run(["promtool", "test", "rules", str(tmp_path / "test.yml")], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "FAILED" in done.stdout + done.stderr


@pytest.mark.parametrize("alert", NAMES)
def test_alert_leads_to_its_runbook(alert: str) -> None:
    assert re.fullmatch(r"Kdtree([A-Z][a-z0-9]*)+", alert)
    rule = alerts()[alert]
    assert set(rule["annotations"]) == {"summary", "runbook"}
    assert rule["annotations"]["runbook"] == f"{INSTALLED_RUNBOOKS}/{alert}.md"
    assert (RUNBOOKS / f"{alert}.md").is_file()
    assert rule["labels"]["severity"] in ("critical", "warning")


@pytest.mark.parametrize("alert", NAMES)
def test_alert_reads_metrics_that_the_agent_has(alert: str) -> None:
    assert {name for name in read_metrics(alert) if not name.startswith("sglang:")} <= set(catalogue()) | SYNTHETIC
    labels = set(re.findall(r'([a-z_]+)=~?"|([a-z_]+)!~?"', alerts()[alert]["expr"]))
    known = {label for name in read_metrics(alert) if name in catalogue() for label in catalogue()[name]["labels"]}
    assert {a or b for a, b in labels} <= known | {"job", "instance"}


def test_tests_use_labels_that_the_agent_gives() -> None:
    for group in rule_tests():
        for series in group["input_series"]:
            name, labels = re.fullmatch(r"([a-z0-9_:]+)\{(.*)\}", series["series"]).groups()
            if name not in SYNTHETIC and not name.startswith("sglang"):
                given = {label.split("=")[0] for label in labels.split(",")} - {"job", "instance"}
                assert given <= set(catalogue()[name]["labels"]), series["series"]


def test_the_two_xid_alerts_share_no_code_and_miss_none() -> None:
    """One alert's codes are exactly what the other leaves out."""
    needs_reset = re.search(r'xid=~"([0-9|]+)"', alerts()["KdtreeXidResetNeeded"]["expr"]).group(1)
    others = re.search(r'xid!~"([0-9|]+)"', alerts()["KdtreeXid"]["expr"]).group(1)
    assert needs_reset == others


def test_scrape_configuration_is_on_loopback() -> None:
    config = yaml.safe_load((DASHBOARDS / "prometheus.yml").read_text())
    assert {scrape["job_name"]: scrape["static_configs"] for scrape in config["scrape_configs"]} == {
        "kdtree": [{"targets": ["127.0.0.1:9817"]}], "sglang": [{"targets": ["127.0.0.1:30000"]}]}
    assert config["rule_files"] == ["rules.yml"]


def test_promtool_is_there() -> None:
    assert shutil.which("promtool") and shutil.which("prometheus")
