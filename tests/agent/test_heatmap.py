# SPDX-License-Identifier: Apache-2.0
"""`kdtreectl heatmap` against a real agent."""
from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time

import pytest

from conftest import Agent, built
from test_exposition import agent_on, authority, hashed, start_with  # noqa: F401: a fixture
from test_page import scene  # noqa: F401: a fixture


def heatmap(agent: Agent, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [built("kdtreectl"), "heatmap", "--agent", f"127.0.0.1:{agent.port}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, env={**os.environ, **environment})


def test_eight_rows_with_the_values_given(agent: Agent) -> None:
    agent.gpus({"gpus": {**{str(i): {"utilization": 12 * i} for i in range(7)}, "7": {"fail": "lost"}}})
    agent.start()
    agent.until(lambda: len(agent.family("kdtree_gpu_up")) == 8, "eight GPUs are sampled")
    drawn = heatmap(agent)
    assert drawn.returncode == 0, drawn.stderr
    rows = [line.split() for line in drawn.stdout.splitlines() if line.startswith("  gpu ")]
    assert [row[-2] for row in rows[:7]] == [str(12 * i) for i in range(7)]
    assert rows[7][-1] == "lost" and set(rows[7][-2]) == {"?"}
    assert "no routing is observed" in drawn.stdout and "\x1b" not in drawn.stdout
    shown = json.loads(heatmap(agent, "--json").stdout)
    assert [gpu["utilization"] for gpu in shown["gpus"]] == [pytest.approx(12 * i / 100) for i in range(7)] + [None]
    assert [gpu["trouble"] for gpu in shown["gpus"]] == [None] * 7 + ["lost"] and shown["moe"] is None


def test_the_experts_are_those_of_the_page(scene: Agent) -> None:  # noqa: F811
    drawn = heatmap(scene, "--once")
    rows = re.findall(r"^  part (\d) (\S+)  (\d\.\d\d)$", drawn.stdout, re.M)
    assert [row[0] for row in rows] == list("01234567"), drawn.stdout
    assert all(len(cells) == 60 and set(cells) <= set("_.-=+*#") for _, cells, _ in rows)
    assert "what EP 8 would give" in drawn.stdout and "uniform routing" in drawn.stdout
    step, together = (float(re.search(rf"fullest rank {of}: (\S+) of the mean; uniform", drawn.stdout).group(1))
                      for of in ("of a step", "of all steps together, as drawn"))
    assert 1.9 < step < 2.3 and 1.8 < together < 2.1 and "  9.0 tokens a step" in drawn.stdout
    live = json.loads(scene.get("/live.json")[1])["moe"]
    shown = json.loads(heatmap(scene, "--json").stdout)["moe"]
    assert shown["layers"] == live["layers"] and len(shown["load"]) == 60
    hot = [row.index(max(row)) for row in shown["load"]]
    assert [hot[layer] for layer in range(60) if layer % 3] == [(layer * 5 // 7) % 8 for layer in range(60) if layer % 3], "the weights that were given"


def test_live_in_a_terminal(scene: Agent) -> None:  # noqa: F811
    """Draws over itself in colours, to the terminal's width, until it is interrupted."""
    pid, terminal = pty.fork()
    if pid == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 72, 0, 0))
        os.execve(built("kdtreectl"), ["kdtreectl", "heatmap", "--interval", "0.5", "--agent", f"127.0.0.1:{scene.port}"],
                  {**os.environ, "TERM": "xterm-256color", "NO_COLOR": ""})
    text, end = "", time.monotonic() + 20
    while text.count("\x1b[J") < 2 and time.monotonic() < end:
        if select.select([terminal], [], [], 0.2)[0]:
            text += os.read(terminal, 65536).decode(errors="replace")
    os.write(terminal, b"\x03")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(terminal)
    assert text.count("\x1b[J") >= 2 and "\x1b[38;5;" in text
    lines = [re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", line) for line in text.replace("\r", "").split("\n")]
    rows = [line for line in lines if re.match(r"  (gpu|part) \d", line)]
    assert len(rows) >= 32 and max(map(len, rows)) <= 72


def test_over_tls_with_a_password(agent: Agent, authority: object) -> None:  # noqa: F811
    web = authority / "web.yml"
    web.write_text(f"tls_server_config: {{cert_file: agent.pem, key_file: agent.key}}\nbasic_auth_users: {{ops: '{hashed('secret')}'}}\n")
    start_with(agent, web)
    ca = str(authority / "ca.pem")
    assert heatmap(agent, "--once", "--ca", ca, "--user", "ops", KDTREE_AGENT_PASSWORD="secret").returncode == 0
    for arguments, said in ((["--ca", ca], "--user"), (["--ca", "/nowhere"], "/nowhere"), ([], "doesn't answer")):
        refused = heatmap(agent, "--once", *arguments)
        assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (3, "", 1), refused
        assert said in refused.stderr


def test_over_a_unix_socket(agent: Agent, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "a.sock"
    agent_on(agent, path)
    done = subprocess.run([built("kdtreectl"), "heatmap", "--once", "--agent", f"unix:{path}"], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0 and "GPU utilisation" in done.stdout, done.stderr


def test_an_agent_that_doesnt_answer_is_refused_in_one_line(agent: Agent) -> None:
    refused = heatmap(agent)
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (3, "", 1)
    assert "kdtree-agent" in refused.stderr
