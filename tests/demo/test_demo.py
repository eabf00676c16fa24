# SPDX-License-Identifier: Apache-2.0
"""`make demo` runs through, and its summary says what happened."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "host"))
from machine import why_not  # noqa: E402

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """(what the demo printed, its facts)"""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    facts = tmp_path_factory.mktemp("demo") / "facts.json"
    done = subprocess.run([sys.executable, HERE / "demo.py", "--facts", facts], capture_output=True, text=True, timeout=590)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]
    return done.stdout, json.loads(facts.read_text())


def test_the_summary_is_the_last_page(demo):
    page = demo[0].split("\nSummary (")[1]
    for row in ("changed on the host", "validate compared", "the patch served", "handed back", "live switches", "broken change", "Prometheus saw"):
        assert row in page, page
    assert len(page.splitlines()) < 40


def test_it_says_what_it_ran_on(demo):
    printed, facts = demo
    assert ("CPU implementation throughout" in printed) == (facts["device"] == "cpu")


def test_validate_compared_enough_and_found_nothing(demo):
    compared = demo[1]["validate"]
    assert compared["fewest_on_a_rank"] >= 40 and compared["mismatches"] == 0
    assert compared["longest_prefix"] > 0 and compared["batches"]
    assert 0 <= compared["max_abs"] < 0.01


def test_kdtrees_kernel_answered(demo):
    assert demo[1]["served"]["kernel"] > 0 and demo[1]["served"]["engine"] > 0


def test_tokens_are_the_same_in_every_mode(demo):
    tokens = demo[1]["tokens"]
    assert len(tokens["plain"]) == 6
    assert tokens["plain"] == tokens["validate"] == tokens["on"] == tokens["after"]


def test_the_broken_change_was_taken_back(demo):
    last = demo[1]["history"][-1]
    assert last["result"] == "rolled back" and "memory" in last["reason"].lower()
    assert [entry["result"] for entry in demo[1]["history"][:-1]] == ["good"] * 3


def test_only_kdtrees_own_files_changed(demo):
    facts = demo[1]
    assert facts["unit_before"] == facts["unit_after"]
    for line in facts["changed"]:
        path = line.split()[1]
        assert path.startswith(("/opt/kdtree", "/var/lib/kdtree", "/etc/systemd/system/sglang.service.d", "/etc/kdtree")) or \
            path in ("/etc/systemd/system", "/etc/systemd/system/multi-user.target.wants", "/etc/systemd/system/basic.target.wants") or \
            path.endswith((".wants/kdtree-agent.service", ".wants/kdtree-recover.service")), line
    assert "KDTREE_VERIFY=on" in facts["drop_in"]


def test_prometheus_scraped_the_agent(demo):
    seen = demo[1]["prometheus"]
    assert seen["up"] == ["1"] and seen["ranks_on"] == 2 and seen["calls"].get("kernel", 0) > 0
    if demo[1]["device"] == "cpu":
        assert seen["gpus"] == 8
