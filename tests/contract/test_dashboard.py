# SPDX-License-Identifier: Apache-2.0
"""The dashboards: rules like grafana/dashboard-linter's (exceptions in dashboards/.lint), and never a benign number for unknown."""

from __future__ import annotations

import re
import subprocess

import pytest
import yaml

from contract_files import BOARDS, DASHBOARDS, all_panels, catalogue, dashboard, metrics_in, panels, queries, records

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
PANELS = all_panels()
PANEL_IDS = [f"{board} {panel['title']}" for board, panel in PANELS]
QUERIES = queries()
IDS = [f"{title} {ref}" for title, ref, _ in QUERIES]
# SGLang's metrics, by name in both spellings; `engine` is their instance.
ENGINE = re.compile(r'\{__name__=~"sglang\[:_\]\w+", instance=~"\$engine"\}|\{instance=~"\$engine"\}')


def exceptions() -> dict[str, dict]:
    return yaml.safe_load((DASHBOARDS / ".lint").read_text())["exclusions"]


def variables(board: str) -> dict[str, dict]:
    return {variable["name"]: variable for variable in dashboard(board)["templating"]["list"]}


def test_the_folder_holds_these_and_no_other() -> None:
    assert {path.stem for path in DASHBOARDS.glob("*.json")} == set(BOARDS)


@pytest.mark.parametrize("board", BOARDS)
def test_identity(board: str) -> None:
    made = dashboard(board)
    assert made["uid"] == board and made["title"] and made["description"] and made["editable"] is False
    assert "__inputs" not in made and made.get("id") is None and made["tags"] == ["kdtree"]


@pytest.mark.parametrize("board", BOARDS)
def test_panel_ids_and_titles_are_unique(board: str) -> None:
    ids = [panel["id"] for panel in dashboard(board)["panels"]]
    titles = [panel["title"] for panel in dashboard(board)["panels"]]
    assert len(set(ids)) == len(ids) and len(set(titles)) == len(titles)


@pytest.mark.parametrize("board", BOARDS)
def test_panels_do_not_overlap(board: str) -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in dashboard(board)["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        for x in range(at["x"], at["x"] + at["w"]):
            for y in range(at["y"], at["y"] + at["h"]):
                assert (x, y) not in taken, f"{panel['title']} covers {taken[x, y]}"
                taken[x, y] = panel["title"]


@pytest.mark.parametrize("board", BOARDS)
def test_variables(board: str) -> None:
    source, job, instance, *more = variables(board).values()
    assert [variable["name"] for variable in (source, job, instance)] == ["datasource", "job", "instance"]
    assert source["type"] == "datasource" and source["query"] == "prometheus" and source["label"] == "Data source"
    for variable in (job, instance, *more):
        assert variable["type"] == "query" and variable["datasource"] == DATASOURCE and variable["label"]
        assert variable["refresh"] == 2, "reloads on a change of the time range"
        assert metrics_in(variable["definition"]) <= set(catalogue())
        assert variable["query"]["query"] == variable["definition"]
    assert job["multi"] and job["includeAll"] and job["allValue"] == ".+"
    assert not instance["multi"] and exceptions()["template-instance-rule"]["reason"]
    assert [variable["name"] for variable in more] == (["engine"] if board == "kdtree-verify" else [])


@pytest.mark.parametrize("board", BOARDS)
def test_no_instance_is_written_in(board: str) -> None:
    assert not re.search(r"localhost|\d+\.\d+\.\d+\.\d+|:9817|:30000", (DASHBOARDS / f"{board}.json").read_text())


@pytest.mark.parametrize(("board", "panel"), PANELS, ids=PANEL_IDS)
def test_panel(board: str, panel: dict) -> None:
    assert panel["datasource"] == DATASOURCE
    assert len(panel["description"]) > 15 and panel["description"].endswith(".")
    defaults = panel["fieldConfig"]["defaults"]
    assert defaults["unit"]
    assert "noValue" not in defaults, "no data must look like no data"
    assert defaults.get("custom", {}).get("spanNulls") in (None, False), "a gap must look like a gap"
    assert [target["refId"] for target in panel["targets"]] == [chr(65 + i) for i in range(len(panel["targets"]))]


def names_in(expression: str) -> set[str]:
    """kdtree's own metrics in an expression; recording rules and SGLang's left out."""
    return metrics_in(re.sub(r"\bkdtree:[\w:]+", "", expression))


@pytest.mark.parametrize(("title", "ref", "target"), QUERIES, ids=IDS)
def test_query(title: str, ref: str, target: dict) -> None:
    expression = target["expr"]
    assert target["datasource"] == DATASOURCE and target["legendFormat"]
    used = names_in(expression)
    assert used <= set(catalogue())
    assert used or ENGINE.search(expression)
    assert set(re.findall(r"\bkdtree:[\w:]+", expression)) <= set(records())
    selectors = re.findall(r"\bkdtree_[a-z0-9_]+(\{[^}]*\})?", expression)
    assert all('job=~"$job"' in s and 'instance=~"$instance"' in s for s in selectors), "each selector takes the variables"
    assert re.findall(r"\[\$?[a-z_0-9]+\]", expression) == ["[$__rate_interval]"] * expression.count("[$")
    assert not re.search(r"\bvector\(|absent\(", expression), "unknown is not a number"
    legend = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
    assert legend <= {label for name in used for label in catalogue()[name]["labels"]} | {"instance"}


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


def test_queries_parse(tmp_path) -> None:
    rules = [{"record": "panel:query", "expr": target["expr"].replace("$__rate_interval", "20s"), "labels": {"panel": f"{title} {ref} {at}"}}
             for at, (title, ref, target) in enumerate(QUERIES)]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    done = subprocess.run(["promtool", "check", "rules", str(tmp_path / "rules.yml")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_heatmaps_have_a_row_a_series() -> None:
    heatmaps = {panel["title"]: panel for _, panel in PANELS if panel["type"] == "status-history"}
    for title, legend in (("GPU utilisation", "GPU {{gpu}}"), ("Tensor activity", "GPU {{gpu}}"), ("MoE rank load", "rank {{moe_rank}}")):
        (target,) = heatmaps[title]["targets"]
        assert target["legendFormat"] == legend
        assert heatmaps[title]["maxDataPoints"] <= 200, "status-history refuses more points than it can draw (grafana#51259)"
        assert heatmaps[title]["fieldConfig"]["defaults"]["color"]["mode"].startswith("continuous")


def test_the_matrix_is_coloured_by_load() -> None:
    (matrix,) = [panel for panel in panels("kdtree-moe") if panel["title"] == "Load of each rank by layer"]
    assert matrix["transformations"] == [{"id": "groupingToMatrix", "options": {"columnField": "moe_rank", "rowField": "layer", "valueField": "Value"}}]
    defaults = matrix["fieldConfig"]["defaults"]
    assert defaults["custom"]["cellOptions"]["type"] == "color-background" and (defaults["min"], defaults["max"]) == (0, 2)


def test_every_exception_is_needed() -> None:
    titles = {panel["title"] for _, panel in PANELS}
    for rule, exception in exceptions().items():
        assert len(exception["reason"]) > 20, rule
        assert {entry["panel"] for entry in exception.get("entries", [])} <= titles, rule


def test_units_fit_the_metrics() -> None:
    """A panel of one plain metric shows that metric's own unit."""
    fitting = {"bytes": {"bytes"}, "watts": {"watt"}, "celsius": {"celsius"}, "bytes_per_second": {"Bps"}, "hertz": {"hertz"},
               "seconds": {"s"}, "ratio": {"percentunit", "none"}, "1": {"none", "sci"}, "tokens": {"none"}}
    for _, panel in PANELS:
        for target in panel["targets"]:
            plain = re.fullmatch(r"(?:max by \([a-z, ]+\) \()?(kdtree_[a-z0-9_]+)\{[^}]*\}\)?", target["expr"])
            if plain and panel["type"] != "table":
                assert panel["fieldConfig"]["defaults"]["unit"] in fitting[catalogue()[plain.group(1)]["unit"]], panel["title"]


def test_provisioning_names_what_is_installed() -> None:
    folder = DASHBOARDS / "grafana"
    (provider,) = yaml.safe_load((folder / "dashboards.yml").read_text())["providers"]
    assert provider["options"]["path"] == "/usr/share/kdtree/dashboards"
    (source,) = yaml.safe_load((folder / "datasource.yml").read_text())["datasources"]
    assert source["type"] == "prometheus" and source["url"] == "http://127.0.0.1:9090"
    scrape = yaml.safe_load((DASHBOARDS / "prometheus.yml").read_text())["global"]["scrape_interval"]
    assert source["jsonData"]["timeInterval"] == scrape
    for path in folder.glob("*.yml"):
        assert f"grafana/{path.name}" in (DASHBOARDS / "CMakeLists.txt").read_text()


def test_page_and_terminal_end_where_the_dashboard_does() -> None:
    """Load is drawn up to twice the mean, utilisation from 0 to 1, in all three."""
    page = (DASHBOARDS.parent / "agent/metrics/page/page.js").read_text()
    terminal = (DASHBOARDS.parent / "agent/cli/heatmap_view.cpp").read_text()
    low, high = map(float, re.search(r"Math\.max\((-\d+), Math\.min\((\d+), Math\.log2\(", page).groups())
    assert (low, high) == tuple(map(float, re.search(r"std::clamp\(std::log2\(.+?\), (-[\d.]+), ([\d.]+)\)", terminal).groups()))
    limits = {panel["title"]: (panel["fieldConfig"]["defaults"].get("min"), panel["fieldConfig"]["defaults"].get("max")) for _, panel in PANELS}
    assert limits["MoE rank load"] == limits["Load of each rank by layer"] == (0, 2 ** high) and low == -high
    assert "std::clamp(part, 0.0, 1.0)" in terminal and "// value 0 to 1" in page
    assert limits["GPU utilisation"] == limits["Tensor activity"] == limits["Highest sample"] == (0, 1)
