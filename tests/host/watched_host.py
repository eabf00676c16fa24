# SPDX-License-Identifier: Apache-2.0
"""A throw-away host with a Prometheus that has kdtree's installed configuration and rules, their times shrunk; and a runbook's page
that is gone through there: the alert fires, its commands are run as they stand, its remedy ends it."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
import urllib.parse
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Iterator

from kdtree_host import KdtreeHost
from machine import Completed
from package import FAKE_GPUS, REPOSITORY

sys.path.insert(0, str(REPOSITORY / "tests" / "contract"))
from runbook_pages import commands, on_hardware, quick_rules  # noqa: E402

PROMETHEUS = "http://127.0.0.1:9090"
INSTALLED = "/usr/share/kdtree/dashboards/prometheus.yml"
WINDOW = "8s"
GPU = {"utilization": 60, "gpm": {"2": 60.0, "5": 8.0}}
# Verbs that show, and the exit codes of a good and of a bad answer; all other verbs change something and must end well.
SHOWS = {"status": (0, 1), "verdict": (0, 1), "doctor": (0, 1), "history": (0,), "selftest": (0,), "plan": (0,), "heatmap": (0,)}


class Watched:
    """The host, what was run there by page, and what its Prometheus says."""

    def __init__(self, host: KdtreeHost, folder: Path) -> None:
        self.host, self.folder = host, folder
        self.executed: dict[str, set[str]] = {}

    @contextmanager
    def prometheus(self) -> Iterator[None]:
        """Debian's, in the host's network; /etc/prometheus/prometheus.yml of the pages is its configuration."""
        (self.folder / "rules.yml").write_text(quick_rules(WINDOW))
        text = self.host.read(INSTALLED)
        for given, wanted in (("scrape_interval: 5s", "scrape_interval: 1s"), ("scrape_timeout: 4s", "scrape_timeout: 1s"),
                              ("evaluation_interval: 15s", "evaluation_interval: 1s")):
            assert given in text, given
            text = text.replace(given, wanted)
        self.config = self.folder / "prometheus.yml"
        self.config.write_text(text)
        with open(self.folder / "prometheus.log", "w") as log:
            job = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *self.host.in_network(
                ["prometheus", f"--config.file={self.config}", f"--storage.tsdb.path={self.folder / 'tsdb'}",
                 "--web.listen-address=127.0.0.1:9090"])], stdout=log, stderr=subprocess.STDOUT)
        try:
            self.host.wait("Prometheus scrapes the agent", lambda: job.poll() is not None or self.query('up{job="kdtree"} == 1'), 60)
            assert job.poll() is None, (self.folder / "prometheus.log").read_text()[-2000:]
            yield
        finally:
            job.kill()
            job.wait()

    def _api(self, path: str) -> Any:
        status, body = self.host.http(f"{PROMETHEUS}/api/v1/{path}", 20)
        return json.loads(body)["data"] if status == 200 else {"result": [], "groups": []}

    def query(self, expression: str) -> list[dict[str, Any]]:
        return self._api(f"query?query={urllib.parse.quote(expression)}")["result"]

    def firing(self) -> list[dict[str, str]]:
        """Labels of each alert that fires."""
        rules = [rule for group in self._api("rules")["groups"] for rule in group["rules"]]
        return [one["labels"] for rule in rules for one in rule.get("alerts", []) if one["state"] == "firing"]

    def gpus(self, xids: list[dict[str, int]] | None = None, **more: Any) -> None:
        """Orders for the fake GPUs: all well, but for `more` (g3={...}: GPU 3; any other key as it is)."""
        orders = {"gpus": {str(index): {**GPU, **more.pop(f"g{index}", {})} for index in range(8)}, "xids": xids or [], **more}
        self.host.write(f"{FAKE_GPUS}.new", json.dumps(orders))
        self.host.path(f"{FAKE_GPUS}.new").rename(self.host.path(FAKE_GPUS))

    def run(self, page: str, command: str) -> Completed:
        """One command of a page as it stands there, but for what a person would answer or look up."""
        self.executed.setdefault(page, set()).add(command)
        here = command.replace("ps -p PID", "ps -p 9999999")
        if here.startswith("kdtreectl ") and here.split()[1] in ("deploy", "mode", "rollback", "uninstall") and "--dry-run" not in here:
            here += " --yes" if len(here.split()) > 2 or here.split()[1] != "mode" else ""
        if here.startswith("promtool "):
            here = here.replace("/etc/prometheus/prometheus.yml", str(self.config)).replace("[5m]", f"[{WINDOW}]")
            argv = self.host.in_network(shlex.split(here))
            done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
            return Completed(argv, done.returncode, done.stdout, done.stderr)
        return self.host.run(["sh", "-c", here], timeout=300)

    def left_out(self, page: Path) -> list[str]:
        """Commands of a page that were run in no test of this module and are not for real hardware."""
        anywhere = set().union(*self.executed.values())
        return [command for command in commands(page) if command not in anywhere and command.split()[0] not in on_hardware(page)
                and "…" not in command]


def ends_well(command: str, rc: int) -> bool:
    words = command.split()
    if "| grep" in command:
        return rc in (0, 1)  # 1: nothing of it there
    if words[0] == "kdtreectl":
        if words == ["kdtreectl", "mode"]:
            return rc in (0, 1)
        return rc in ((0, 3) if "--dry-run" in words else SHOWS.get(words[1], (0,)))  # 3: there is no state to go back to
    if words[:2] == ["systemctl", "status"]:
        return rc in (0, 3)  # 3: not active
    return rc in ((0, 1) if words[0] == "ps" else (0,))


def only_shows(command: str) -> bool:
    words = command.split()
    if words[0] == "kdtreectl":
        return words[1] in SHOWS or "--dry-run" in words or words == ["kdtreectl", "mode"]
    return words[0] in ("promtool", "curl", "journalctl", "ls", "df", "ps") or words[:2] in (["systemctl", "status"], ["systemctl", "show"])


class Page:
    """One alert's page, gone through from top to bottom."""

    def __init__(self, watched: Watched, alert: str, **labels: str) -> None:
        self.watched, self.alert, self.labels = watched, alert, labels
        self.path = REPOSITORY / "runbooks" / f"{alert}.md"
        self.commands = [command for command in commands(self.path) if command.split()[0] not in on_hardware(self.path) and "…" not in command]

    def fires(self) -> bool:
        return any(labels["alertname"] == self.alert and self.labels.items() <= labels.items() for labels in self.watched.firing())

    def wait(self) -> None:
        self.watched.host.wait(f"{self.alert} fires", self.fires, 90)

    def diagnose(self, *seen: str) -> None:
        """Runs everything on the page that only shows; each of `seen` is in what one of the commands says, at the latest a moment later."""
        end = time.monotonic() + 60
        while True:
            said = ""
            for command in filter(only_shows, self.commands):
                done = self.watched.run(self.alert, command)
                assert ends_well(command, done.rc), f"{command}: {done.rc}\n{done.out}{done.err}"
                said += done.out + done.err
            missing = [text for text in seen if text not in said]
            if not missing:
                return
            assert time.monotonic() < end, f"{self.alert}: not seen: {missing}\n{said[-6000:]}"

    def do(self, *remedy: str, rc: int = 0) -> str:
        """Commands of the page that change something; what they said."""
        said = ""
        for command in remedy:
            assert command in self.commands, f"{self.path.name} has no `{command}`"
            done = self.watched.run(self.alert, command)
            assert done.rc == rc, f"{command}: {done.rc}\n{done.out}{done.err}"
            said += done.out + done.err
        return said

    def clears(self) -> None:
        self.watched.host.wait(f"{self.alert} clears", lambda: not self.fires(), 90)
