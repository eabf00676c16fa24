# SPDX-License-Identifier: Apache-2.0
"""The dashboard: rules like grafana/dashboard-linter's (exceptions in dashboards/.lint), and never a benign number for unknown."""

from __future__ import annotations

import re
import subprocess

import pytest
import yaml

from contract_files import DASHBOARDS, catalogue, dashboard, metrics_in, panels, queries

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
QUERIES = queries()
IDS = [f"{title} {ref}" for title, ref, _ in QUERIES]


def exceptions() -> dict[str, dict]:
    return yaml.safe_load((DASHBOARDS / ".lint").read_text())["exclusions"]


def variables() -> dict[str, dict]:
    return {variable["name"]: variable for variable in dashboard()["templating"]["list"]}


def test_identity() -> None:
    board = dashboard()
    assert board["uid"] == "kdtree" and board["title"] and board["description"] and board["editable"] is False
    assert "__inputs" not in board and board.get("id") is None


def test_panel_ids_and_titles_are_unique() -> None:
    ids = [panel["id"] for panel in dashboard()["panels"]]
    titles = [panel["title"] for panel in dashboard()["panels"]]
    assert len(set(ids)) == len(ids) and len(set(titles)) == len(titles)


def test_panels_do_not_overlap() -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in dashboard()["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        for x in range(at["x"], at["x"] + at["w"]):
            for y in range(at["y"], at["y"] + at["h"]):
                assert (x, y) not in taken, f"{panel['title']} covers {taken[x, y]}"
                taken[x, y] = panel["title"]


def test_variables() -> None:
    assert list(variables()) == ["datasource", "job", "instance"]
    source, job, instance = variables().values()
    assert source["type"] == "datasource" and source["query"] == "prometheus" and source["label"] == "Data source"
    for variable in (job, instance):
        assert variable["type"] == "query" and variable["datasource"] == DATASOURCE and variable["label"]
        assert variable["refresh"] == 2, "reloads on a change of the time range"
        assert metrics_in(variable["definition"]) <= set(catalogue())
        assert variable["query"]["query"] == variable["definition"]
    assert job["multi"] and job["includeAll"] and job["allValue"] == ".+"
    assert not instance["multi"] and exceptions()["template-instance-rule"]["reason"]


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: panel["title"])
def test_panel(panel: dict) -> None:
    assert panel["datasource"] == DATASOURCE
    assert len(panel["description"]) > 15 and panel["description"].endswith(".")
    defaults = panel["fieldConfig"]["defaults"]
    assert defaults["unit"]
    assert "noValue" not in defaults, "no data must look like no data"
    assert defaults.get("custom", {}).get("spanNulls") in (None, False), "a gap must look like a gap"
    assert [target["refId"] for target in panel["targets"]] == [chr(65 + i) for i in range(len(panel["targets"]))]


@pytest.mark.parametrize(("title", "ref", "target"), QUERIES, ids=IDS)
def test_query(title: str, ref: str, target: dict) -> None:
    expression = target["expr"]
    assert target["datasource"] == DATASOURCE and target["legendFormat"]
    used = metrics_in(expression)
    assert used and used <= set(catalogue())
    selectors = re.findall(r"\bkdtree_[a-z0-9_]+(\{[^}]*\})?", expression)
    assert all('job=~"$job"' in s and 'instance=~"$instance"' in s for s in selectors), "each selector takes the variables"
    assert re.findall(r"\[(.*?)\]", expression) == ["$__rate_interval"] * expression.count("[")
    assert not re.search(r"\bvector\(|absent\(", expression), "unknown is not a number"
    legend = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
    assert legend <= {label for name in used for label in catalogue()[name]["labels"]}


@pytest.mark.parametrize(("title", "ref", "target"), QUERIES, ids=IDS)
def test_counters_are_rated_and_gauges_are_not(title: str, ref: str, target: dict) -> None:
    bare_allowed = {entry["panel"] for entry in exceptions()["target-counter-agg-rule"]["entries"]}
    for match in re.finditer(r"(rate\()?\b(kdtree_[a-z0-9_]+)\{[^}]*\}(\[)?", target["expr"]):
        rated, name, ranged = match.group(1), match.group(2), match.group(3)
        assert bool(rated) == bool(ranged)
        if catalogue()[name]["type"] == "counter":
            assert rated or title in bare_allowed, f"{name} is a counter"
        else:
            assert not rated, f"{name} is a gauge"


@pytest.mark.parametrize(("title", "ref", "target"), QUERIES, ids=IDS)
def test_query_parses(title: str, ref: str, target: dict, tmp_path) -> None:
    expression = target["expr"].replace("$__rate_interval", "20s")
    rules = {"groups": [{"name": "panels", "rules": [{"record": "panel:query", "expr": expression}]}]}
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(rules))
    done = subprocess.run(["promtool", "check", "rules", str(tmp_path / "rules.yml")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_both_heatmaps_have_a_row_a_series() -> None:
    heatmaps = {panel["title"]: panel for panel in panels() if panel["type"] == "status-history"}
    for title, legend in (("GPU utilisation", "GPU {{gpu}}"), ("MoE rank load", "rank {{moe_rank}}")):
        (target,) = heatmaps[title]["targets"]
        assert target["legendFormat"] == legend
        assert heatmaps[title]["maxDataPoints"] <= 200, "status-history refuses more points than it can draw (grafana#51259)"
        assert heatmaps[title]["fieldConfig"]["defaults"]["color"]["mode"].startswith("continuous")


def test_every_exception_is_needed() -> None:
    titles = {panel["title"] for panel in panels()}
    for rule, exception in exceptions().items():
        assert len(exception["reason"]) > 20, rule
        assert {entry["panel"] for entry in exception.get("entries", [])} <= titles, rule


def test_units_fit_the_metrics() -> None:
    """A panel of one plain metric shows that metric's own unit."""
    fitting = {"bytes": {"bytes"}, "watts": {"watt"}, "celsius": {"celsius"}, "bytes_per_second": {"Bps"},
               "seconds": {"s"}, "ratio": {"percentunit"}, "1": {"none", "sci"}, "tokens": {"none"}}
    for panel in panels():
        for target in panel["targets"]:
            plain = re.fullmatch(r"(?:max by \([a-z, ]+\) \()?(kdtree_[a-z0-9_]+)\{[^}]*\}\)?", target["expr"])
            if plain and panel["type"] != "table":
                assert panel["fieldConfig"]["defaults"]["unit"] in fitting[catalogue()[plain.group(1)]["unit"]], panel["title"]
