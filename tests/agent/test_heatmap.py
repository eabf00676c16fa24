# SPDX-License-Identifier: Apache-2.0
"""`kdtreectl heatmap` against a real agent."""
from __future__ import annotations

import json
import subprocess

from conftest import Agent, built


def heatmap(agent: Agent, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [built("kdtreectl"), "heatmap", "--agent", f"127.0.0.1:{agent.port}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=30)


def test_eight_rows_with_the_values_given(agent: Agent) -> None:
    agent.gpus({"gpus": {**{str(i): {"utilization": 12 * i} for i in range(7)}, "7": {"fail": "lost"}}})
    agent.start()
    agent.until(lambda: len(agent.family("kdtree_gpu_up")) == 8, "eight GPUs are sampled")
    drawn = heatmap(agent)
    assert drawn.returncode == 0, drawn.stderr
    rows = [line.split() for line in drawn.stdout.splitlines() if line.startswith("  gpu ")]
    assert [row[-2] for row in rows[:7]] == [str(12 * i) for i in range(7)]
    assert rows[7][-2:] == ["?", "lost"]
    assert "no routing is observed" in drawn.stdout and "\x1b" not in drawn.stdout
    shown = json.loads(heatmap(agent, "--json").stdout)
    assert [gpu["utilization"] for gpu in shown["gpus"]] == [12 * i / 100 for i in range(7)] + [None]
    assert shown["moe"] == {"ep_size": None, "balance": None, "ranks": []}


def test_an_agent_that_doesnt_answer_is_refused_in_one_line(agent: Agent) -> None:
    refused = heatmap(agent)
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (3, "", 1)
    assert "kdtree-agent" in refused.stderr
