# SPDX-License-Identifier: Apache-2.0
"""Each alert on a live agent and Prometheus: the fault is made, the alert fires, the page's own curl and promtool commands show what the
page says one will see, the fault is mended as the page says, the alert clears. Waiting times and windows of the rules are shortened.

Commands that need the host's systemd (systemctl, journalctl, kdtreectl) are run by tests/host/test_host_runbooks.py.
"""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
from collections.abc import Callable, Iterator

import pytest

from contract_files import RUNBOOKS, alerts, program
from live_host import RANKS, Engine, LiveHost, until
from runbook_pages import indented, quick_rules


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveHost]:
    folder = tmp_path_factory.mktemp("runbooks")
    made = LiveHost(folder)
    made.xids = []
    made.rules_file = folder / "rules.yml"
    made.rules_file.write_text(quick_rules("4s"))
    with made as running:
        until(lambda: running.instant("sum(kdtree_rank_up) == 8"), "all ranks are seen")
        yield running


@dataclasses.dataclass
class Scene:
    make: Callable[[LiveHost], None]
    mend: Callable[[LiveHost], None]
    seen: tuple[str, ...] = ()  # each is in the output of one of the page's commands
    labels: dict[str, str] = dataclasses.field(default_factory=dict)


def gpus(**about: dict[str, object]) -> Callable[[LiveHost], None]:
    def tell(host: LiveHost) -> None:
        for index, fields in about.items():
            host.gpus[index.lstrip("g")].update(fields)
        host.instruct()
    return tell


def orders(**fields: object) -> Callable[[LiveHost], None]:
    return lambda host: host.order(**fields)


def state(trial: bool) -> Callable[[LiveHost], None]:
    return lambda host: (host.root / "var/lib/kdtree/state.json").write_text(json.dumps({"format": 1, "trial": trial})) and None


def xid(code: int) -> Callable[[LiveHost], None]:
    def tell(host: LiveHost) -> None:
        host.xids = [{"id": 1000 + code, "gpu": 2, "xid": code}]
        host.instruct()
    return tell


def step_scale(scale: float) -> Callable[[LiveHost], None]:
    return lambda host: setattr(Engine, "step_scale", scale)


def file_in_stats(text: str | None) -> Callable[[LiveHost], None]:
    def put(host: LiveHost) -> None:
        path = host.root / "run/kdtree/stats/9999999.stats"
        path.write_text(text) if text is not None else path.unlink()
    return put


def release(name: str) -> Callable[[LiveHost], None]:
    def point(host: LiveHost) -> None:
        link = host.root / "opt/kdtree/current"
        link.unlink()
        link.symlink_to(f"releases/{name}")
    return point


def nothing(host: LiveHost) -> None:
    """Time mends it."""


def end_rank(host: LiveHost) -> None:
    host.ranks[5].kill()
    host.ranks[5].wait()


def start_rank(host: LiveHost) -> None:
    host.ranks[5] = host._start_rank(5)


def restart_agent(host: LiveHost) -> None:
    host.xids = []
    host.instruct()
    host.agent.terminate()
    host.agent.wait(15)
    host._start_agent()


SCENES = {
    "KdtreeVerifyMismatch": Scene(orders(mismatches=3), orders(mismatches=3, mode=0), (), {"rank": "4"}),
    "KdtreeVerifyHandedBack": Scene(orders(mode=2, handed_back={"16": 50}), orders(mode=2), ('reason="mask"',), {"reason": "mask"}),
    "KdtreeKernelError": Scene(orders(handed_back={"18": 1}), orders(), ("HELP|",)),
    "KdtreePatchRefused": Scene(orders(patch_state=2, reason="kernel failed"), orders(), ('patch_state="refused"} 8',)),
    "KdtreeRankMissing": Scene(end_rank, start_rank, ('kdtree_rank_up{rank="5"} 0', 'kdtree_stats_files{state="dead"} 1'), {"rank": "5"}),
    "KdtreeModeDrift": Scene(release("another"), release("r-live"), ("kdtree_rank_info",), {"kind": "release"}),
    "KdtreeGpuLost": Scene(gpus(g3={"fail": "lost"}), gpus(g3={"fail": "ok"}), ('kdtree_gpu_failure_info{gpu="3"', 'reason="lost"'), {"gpu": "3"}),
    "KdtreeXid": Scene(xid(31), nothing, ('xid="31"} 1', 'kdtree_gpu_info{gpu="2"'), {"gpu": "2", "xid": "31"}),
    "KdtreeXidResetNeeded": Scene(xid(79), restart_agent, ('xid="79"} 1', 'kdtree_gpu_up{gpu="2"'), {"gpu": "2", "xid": "79"}),
    "KdtreeStatsUnreadable": Scene(file_in_stats("x" * 5000), file_in_stats(None), ('kdtree_stats_files{state="foreign"} 1',), {"state": "foreign"}),
    "KdtreeStepTimeCollapsed": Scene(step_scale(40), step_scale(1), ("kdtree:engine_step_seconds:rate5m",)),
    "KdtreeGpuBusyWithoutTensor": Scene(gpus(g6={"utilization": 99, "gpm": {"2": 4, "5": 0.1}}), gpus(g6={"utilization": 99, "gpm": {"2": 60, "5": 8}}),
                                        ('gpu="6"', 'by="engine"'), {"gpu": "6"}),
    "KdtreeTrialUnconfirmed": Scene(state(True), state(False)),
}
# Of those left: KdtreeAllRanksMissing and KdtreeAgentBlind end the scene for all others and come last; KdtreeMoeImbalance fires all the
# time here, since rank 7 of these ranks has 8 parts of 36.


def firing(host: LiveHost, alert: str, labels: dict[str, str]) -> list[dict]:
    (rule,) = [rule for rule in host.rules() if rule["name"] == alert]
    return [one for one in rule["alerts"] if one["state"] == "firing" and labels.items() <= one["labels"].items()]


def run_commands(host: LiveHost, alert: str) -> str:
    """Output of the page's curl, promtool and heatmap commands, with this host's addresses; each must end well."""
    said = ""
    for command in indented(RUNBOOKS / f"{alert}.md"):
        if not command.startswith(("curl ", "promtool query ", "kdtreectl heatmap")):
            continue
        here = command.replace("127.0.0.1:9817", host.instance).replace("127.0.0.1:9090", f"127.0.0.1:{host.prometheus_port}")
        here = here.replace("[5m]", "[4s]").replace("kdtreectl heatmap", f"{program('kdtreectl')} heatmap --agent {host.instance}")
        done = subprocess.run(["bash", "-c", here], capture_output=True, text=True, timeout=30)
        assert done.returncode == 0 or "grep" in here and done.returncode == 1, f"{here}: {done.returncode} {done.stderr}"
        said += done.stdout
    return said


def play(host: LiveHost, alert: str, scene: Scene) -> None:
    until(lambda: not firing(host, alert, scene.labels), f"{alert} is quiet before")
    scene.make(host)
    try:
        until(lambda: firing(host, alert, scene.labels), f"{alert} fires", 90)
        for text in scene.seen:
            if "|" not in text:
                until(lambda: text in run_commands(host, alert), f"{alert}'s page shows {text}")
        run_commands(host, alert)
    finally:
        scene.mend(host)
    until(lambda: not firing(host, alert, scene.labels), f"{alert} clears", 90)


@pytest.mark.parametrize("alert", SCENES)
def test_the_page_leads_from_the_alert_to_its_end(host: LiveHost, alert: str) -> None:
    play(host, alert, SCENES[alert])


def start_ranks(host: LiveHost, **fields: object) -> None:
    """The engine starts anew, its ranks with these header fields."""
    for rank in host.ranks:
        rank.kill()
        rank.wait()
    host.orders.write_text(json.dumps(fields))
    host.ranks = [host._start_rank(rank) for rank in range(RANKS)]


def test_imbalance_is_told_with_its_numbers_and_ends_at_ep_1(host: LiveHost) -> None:
    """A step's fullest rank has 24 assignments of 72 here; the pages' numbers are those of the two kinds of ratio."""
    until(lambda: firing(host, "KdtreeMoeImbalance", {}), "KdtreeMoeImbalance fires")
    said = run_commands(host, "KdtreeMoeImbalance")
    rows = dict(re.findall(r"^  rank (\d) \S+  (\d\.\d\d)$", said, re.M))
    assert len(rows) == RANKS and max(rows, key=lambda rank: float(rows[rank])) == "7", said
    step, uniform, tokens, whole = (float(value) for value in re.findall(r"=> (\S+) @", said)[:4])
    assert (step, tokens) == (pytest.approx(24 / 9), pytest.approx(72)) and 1.3 < uniform < 1.7
    assert whole == pytest.approx(8 / 4.5, rel=0.1) and 'ep_size="4"' in said and 'layer="1"' in said
    assert re.search(r'moe_rank="7"[^\n]*=> [1-9]', said) and re.search(r'moe_rank="0"[^\n]*=> 0 @', said), said
    start_ranks(host, moe_ep_size=1, moe_ep_rank=0)
    try:
        until(lambda: not firing(host, "KdtreeMoeImbalance", {}), "it ends where experts are sliced", 90)
        what_if = until(lambda: host.instant("kdtree_moe_what_if_peak_tokens_total"), "what EP 8 would be is told")
        assert {labels[0] for labels in what_if} == {("ep_size", str(RANKS))} and not host.instant("kdtree_moe_peak_tokens_total")
    finally:
        start_ranks(host)


def test_blind_and_without_ranks(host: LiveHost) -> None:
    def blind(host: LiveHost) -> None:
        (host.folder / "gpus.json").write_text(json.dumps({"init": "driver_not_loaded", "load": 2}))
    play(host, "KdtreeAgentBlind", Scene(blind, lambda host: host.instruct(), ('kdtree_nvml_failure_info{reason="driver_not_loaded"} 1',),
                                         {"collector": "GPUs"}))

    def end(host: LiveHost) -> None:
        for rank in host.ranks:
            rank.kill()
            rank.wait()

    def begin(host: LiveHost) -> None:
        host.ranks = [host._start_rank(rank) for rank in range(RANKS)]
    play(host, "KdtreeAllRanksMissing", Scene(end, begin))


def test_no_alert_is_left_out() -> None:
    assert set(SCENES) | {"KdtreeMoeImbalance", "KdtreeAgentBlind", "KdtreeAllRanksMissing"} == set(alerts())
