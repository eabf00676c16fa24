# SPDX-License-Identifier: Apache-2.0
"""Runbooks: one an alert, four headings, and nothing in them that isn't there: verbs, options, metrics, files, alerts."""

from __future__ import annotations

import functools
import re
import subprocess
from pathlib import Path

import pytest

from contract_files import DASHBOARDS, RUNBOOKS, alerts, catalogue, metrics_in, output, program, runbooks
from runbook_pages import commands, indented, on_hardware

OPERATIONS = {"README", "deploy", "rollback", "upgrade"}
HEADINGS = ["Meaning", "Impact", "Diagnosis", "Mitigation"]
PAGES = runbooks()


def page_id(page: Path) -> str:
    return page.stem


@functools.cache
def help_of(*verb: str) -> str:
    return output(program("kdtreectl"), *verb, "--help")


def test_a_page_for_each_alert_and_an_alert_for_each_page() -> None:
    assert {page.stem for page in PAGES} == set(alerts()) | OPERATIONS


@pytest.mark.parametrize("page", [p for p in PAGES if p.stem in alerts()], ids=page_id)
def test_four_headings(page: Path) -> None:
    text = page.read_text()
    assert text.startswith(f"# {page.stem}\n")
    assert re.findall(r"^## (.+)$", text, re.M) == HEADINGS
    parts = re.split(r"^## .+$", text, flags=re.M)[1:]
    assert all(len(part.strip()) > 40 for part in parts)
    assert re.search(r"`|^    \S", parts[2], re.M), "a diagnosis names commands"


def test_readme_lists_every_page_with_its_severity() -> None:
    text = (RUNBOOKS / "README.md").read_text()
    for page in PAGES:
        assert page.stem == "README" or f"]({page.name})" in text, page.name
    rows = dict(re.findall(r"^\| \[(Kdtree\w+)\]\(\w+\.md\) \| (\w+) \|", text, re.M))
    assert rows == {name: rule["labels"]["severity"] for name, rule in alerts().items()}


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_and_names_lead_somewhere(page: Path) -> None:
    text = page.read_text()
    for link in re.findall(r"\]\(([^)]+)\)", text) + re.findall(r"`(\w+\.md)`", text):
        assert (RUNBOOKS / link).is_file(), link
    assert set(re.findall(r"\bKdtree[A-Z]\w+\b", text)) <= set(alerts())
    for installed in re.findall(r"/usr/share/kdtree/(\w+/[\w.]+)", text):
        assert (DASHBOARDS.parent / installed).is_file(), installed


@pytest.mark.parametrize("page", PAGES + [DASHBOARDS / "README.md"], ids=page_id)
def test_metrics_exist(page: Path) -> None:
    text = page.read_text()
    named = {name for name in metrics_in(text) if not re.search(rf"{name}\(", text)}
    assert named <= set(catalogue())
    for line in indented(page):
        for pattern in re.findall(r"grep(?: -E)? '\^(kdtree_[^']+)'", line):
            assert any(re.match(pattern, name) for name in catalogue()), line
            for alternative in expand(pattern):
                assert any(re.match(alternative, name) for name in catalogue()), f"{line}: nothing begins with {alternative}"


def expand(pattern: str) -> list[str]:
    """A grep pattern's alternatives, one level of brackets."""
    parts = re.split(r"\|(?![^(]*\))", pattern)
    whole = []
    for part in parts:
        part = part.lstrip("^")
        inner = re.search(r"\(([^)]*)\)", part)
        whole += [part.replace(inner.group(), choice) for choice in inner.group(1).split("|")] if inner else [part]
    return whole


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_labels_in_queries_exist(page: Path) -> None:
    for name, labels in re.findall(r"(kdtree_[a-z0-9_]+)\{([^}]*)\}", page.read_text()):
        assert set(re.findall(r"(\w+)[=!]~?", labels)) <= set(catalogue()[name]["labels"]), name


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_kdtreectl_has_the_verbs_and_options(page: Path) -> None:
    verbs = set(re.findall(r"^  ([a-z]+) ", help_of(), re.M))
    assert {"status", "mode"} <= verbs
    for command in commands(page):
        for verb, rest in re.findall(r"\bkdtreectl ([a-z-]+)([^|;]*)", command):
            assert verb in verbs, command
            for option in re.findall(r"(?<!\S)--?[a-z][a-z-]*", rest):
                assert re.search(rf"(?<![\w-]){option}\b", help_of(verb)), f"{command}: kdtreectl {verb} has no {option}"
            if verb == "mode":
                assert re.match(r" (off|validate|on)\b|\s*$", rest), command


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_promtool_queries_parse(page: Path, tmp_path: Path) -> None:
    for command in commands(page):
        found = re.match(r"promtool query instant (http://127\.0\.0\.1:9090) '(.+)'$", command)
        assert found or not command.startswith("promtool query"), command
        if found:
            (tmp_path / "r.yml").write_text(f"groups: [{{name: a, rules: [{{record: 'a:b', expr: '{found.group(2)}'}}]}}]")
            done = subprocess.run(["promtool", "check", "rules", str(tmp_path / "r.yml")], capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{command}: {done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_units_and_addresses_are_ours(page: Path) -> None:
    """The agent's units, the engine's stand-in name, and no address but loopback."""
    text = page.read_text()
    assert set(re.findall(r"\b[\w-]+\.service\b", text)) <= {"sglang.service", "kdtree-agent.service", "kdtree-recover.service"}
    assert set(re.findall(r"\b\d+\.\d+\.\d+\.\d+(?::\d+)?", text)) <= {"127.0.0.1:9817", "127.0.0.1:9090"}


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_what_is_for_real_hardware_is_said(page: Path) -> None:
    """Programs of the driver's or of boards, which no test here can run: marked, and named."""
    programs = {command.split()[0] for command in commands(page)} & {"lspci", "nvidia-smi"}
    marked = on_hardware(page)
    assert programs <= marked, "mark them: <!-- on real hardware alone: NAME, NAME -->"
    assert all(f"`{name}" in page.read_text() for name in marked)


def test_xid_tables_and_alerts_agree() -> None:
    """Codes of the reset table are those of its alert; the other page names none of them."""
    coded = {int(code) for code in re.search(r'xid=~"([0-9|]+)"', alerts()["KdtreeXidResetNeeded"]["expr"]).group(1).split("|")}
    def table(name: str) -> set[int]:
        rows = re.findall(r"^\| ([0-9, ]+) \|", (RUNBOOKS / f"{name}.md").read_text(), re.M)
        return {int(code) for row in rows for code in row.split(",")}
    assert table("KdtreeXidResetNeeded") == coded
    assert table("KdtreeXid") and not table("KdtreeXid") & coded


def test_hand_back_table_names_real_reasons() -> None:
    """Every reason of the stats file's enum that is counted, and no other."""
    header = (RUNBOOKS.parent / "agent/stats/stats_abi.h").read_text()
    known = {name.lower() for name in re.findall(r"KDTREE_BACK_(\w+)\s*=\s*\d+", header)} - {"not_verify"}
    rows = re.findall(r"^\| (`[^|]+`) \|", (RUNBOOKS / "KdtreeVerifyHandedBack.md").read_text(), re.M)
    assert {reason for row in rows for reason in re.findall(r"`(\w+)`", row)} == known
