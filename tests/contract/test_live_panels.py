# SPDX-License-Identifier: Apache-2.0
"""Every panel's query against a real Prometheus that scrapes a real agent over eight fake GPUs and eight live ranks; the heatmaps
return the very values that those were given, and what becomes unknown goes away."""

from __future__ import annotations

import math
import random
import re
import subprocess
from collections import Counter
from collections.abc import Iterator

import pytest

from contract_files import all_panels, alerts, catalogue, records
from live_host import GPUS, RANKS, LiveHost, gpu, until

PANELS = {f"{board} {panel['title']}": panel for board, panel in all_panels()}


def expression(title: str, at: int = 0) -> str:
    return next(panel for _, panel in all_panels() if panel["title"] == title)["targets"][at]["expr"]


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveHost]:
    with LiveHost(tmp_path_factory.mktemp("live")) as running:
        until(lambda: len(running.instant(running.panel_query(expression("MoE rank load")))) == RANKS, "the ranks have been watched a while")
        until(lambda: len(running.instant(running.panel_query(expression("GPU utilisation")))) == GPUS, "the GPUs have been watched a while")
        yield running


@pytest.mark.parametrize("title", PANELS)
def test_panel_returns_data(host: LiveHost, title: str) -> None:
    panel = PANELS[title]
    for target in panel["targets"]:
        query = host.panel_query(target["expr"])
        if target.get("instant"):
            answer = {labels: [value] for labels, value in until(lambda: host.instant(query), f"{title} {target['refId']}").items()}
        else:
            answer = until(lambda: host.ranged(query), f"{title} {target['refId']}")
        assert all(math.isfinite(value) for values in answer.values() for value in values)
        legend = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) - {"instance"}
        assert all(legend <= {name for name, _ in labels} for labels in answer), "the legend's labels are there"
        shown = {tuple(pair for pair in labels if pair[0] in legend) for labels in answer}
        assert panel["type"] == "table" or len(shown) == len(answer), "one name, one series"


def test_utilisation_is_what_the_gpus_were_given(host: LiveHost) -> None:
    """Eight rows, each with its GPU's own value at every point."""
    answer = host.ranged(host.panel_query(expression("GPU utilisation")))
    assert set(answer) == {(("gpu", str(index)),) for index in range(GPUS)}
    for (label,), values in answer.items():
        wanted = gpu(int(label[1]))["utilization"] / 100
        assert values and all(value == pytest.approx(wanted, rel=1e-9) for value in values), label


def test_moe_rank_load_is_what_the_ranks_were_given(host: LiveHost) -> None:
    """Eight rows; expert rank r gets r + 1 parts of 36, whoever publishes when."""
    answer = host.ranged(host.panel_query(expression("MoE rank load")))
    assert set(answer) == {(("moe_rank", str(rank)),) for rank in range(RANKS)}
    mean = sum(rank + 1 for rank in range(RANKS)) / RANKS
    for (label,), values in answer.items():
        assert values and all(value == pytest.approx((int(label[1]) + 1) / mean, rel=1e-9) for value in values), label


@pytest.mark.parametrize(("title", "unit", "field"), [
    ("Power", 1e-3, "power_mw"), ("Memory in use", 1, "memory_used"), ("Temperature", 1, "temperature"),
    ("PCIe in", 1e3, "pcie_rx_kb"), ("PCIe out", 1e3, "pcie_tx_kb")])
def test_gpu_panels_show_base_units(host: LiveHost, title: str, unit: float, field: str) -> None:
    answer = host.instant(host.panel_query(expression(title)))
    assert answer == {(("gpu", str(index)),): pytest.approx(gpu(index)[field] * unit) for index in range(GPUS)}


def fullest_of_uniform() -> float:
    """Of 36 tokens that choose 2 of 16 experts each, 2 a rank: the fullest of eight ranks over the mean, by drawing."""
    draw, drawn = random.Random(3), 4000
    most = (max(Counter(expert // 2 for _ in range(36) for expert in draw.sample(range(16), 2)).values()) for _ in range(drawn))
    return sum(most) / drawn / 9


def test_numbers_of_the_ranks(host: LiveHost) -> None:
    compared = {at: host.instant(host.panel_query(expression("What has been compared", at))) for at in range(6)}
    for rank in range(RANKS):
        row = [compared[at][(("rank", str(rank)),)] for at in range(6)]
        assert row[0] >= 1000 + rank and (row[0] - 1000 - rank) % 10 == 0
        assert row[1:] == [0, pytest.approx(0.001 * (rank + 1)), 1.5, 0.13, 65536 + rank]
    assert host.instant(host.panel_query(expression("Mean difference"))) == {
        (("rank", str(rank)),): pytest.approx(0.1, rel=1e-6) for rank in range(RANKS)}
    assert host.instant(host.panel_query(expression("Mode"))) == {(("mode", "validate"),): 1}
    assert set(host.instant(host.panel_query(expression("Mode of each rank"))).values()) == {1}
    assert set(host.instant(host.panel_query(expression("State of each rank"))).values()) == {2}
    assert host.instant(host.panel_query(expression("KV contiguity")))[(("rank", "7"),)] == pytest.approx(0.97)
    assert set(host.instant(host.panel_query(expression("Drift"))).values()) == {0}
    assert set(host.instant(host.panel_query(expression("Experts read in a step"))).values()) == {8}
    assert next(iter(host.instant(host.panel_query(expression("Experts read in a step", 2))).values())) == pytest.approx(16 * (1 - (7 / 8) ** 36), rel=1e-6)
    idle = host.instant(host.panel_query(expression("Idle share")))
    assert idle == {(("moe_rank", str(rank)),): pytest.approx(0.5 if rank == 0 else 0) for rank in range(RANKS)}
    stragglers = host.instant(host.panel_query(expression("Stragglers")))
    assert stragglers == {(("moe_rank", str(rank)),): pytest.approx(4 if rank >= 6 else 0) for rank in range(RANKS)}
    assert host.instant(host.panel_query(expression("Fullest rank over the mean"))) == {(): pytest.approx(24 / 9)}
    assert host.instant(host.panel_query(expression("Imbalance against expected", 1))).keys() == {()}
    uniform = host.instant(host.panel_query(expression("Fullest rank over the mean", 1)))[()]
    assert uniform == pytest.approx(fullest_of_uniform(), rel=0.02)
    assert host.instant(host.panel_query(expression("Imbalance against expected"))) == {(): pytest.approx(24 / 9 / uniform)}
    worst = host.instant(host.panel_query(expression("Worst layers")))
    assert worst == {(("layer", str(layer)),): pytest.approx(24 / 9 / uniform) for layer in (1, 2, 3)}
    matrix = host.instant(host.panel_query(expression("Load of each rank by layer")))
    assert matrix == {(("layer", str(layer)), ("moe_rank", str(rank))): pytest.approx((rank + 1) / 4.5) for layer in (1, 2, 3) for rank in range(RANKS)}
    answered = host.instant(host.panel_query(expression("Verify calls by who answered")))
    assert answered[(("by", "engine"),)] / answered[(("by", "kernel"),)] == pytest.approx(61 / 2)


def test_the_scrape_is_well_formed(host: LiveHost) -> None:
    """promtool's lint finds nothing, and everything is in the catalogue."""
    text = host.scrape()
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and not done.stdout + done.stderr
    assert set(re.findall(r"^(kdtree_\w+)", text, re.M)) <= set(catalogue())
    assert set(re.findall(r"^# TYPE (\w+)", text, re.M)) <= {metric["name"] for metric in catalogue().values()}


def test_alerts_see_what_was_made_to_happen(host: LiveHost) -> None:
    """The two XIDs, and nothing else; every rule evaluates."""
    def firing() -> dict[str, list[dict]]:
        return {rule["name"]: rule["alerts"] for rule in host.rules() if rule.get("state") == "firing"}
    fired = until(lambda: firing() if len(firing()) >= 2 else None, "the XID alerts fire")
    assert set(fired) == {"KdtreeXid", "KdtreeXidResetNeeded"}
    assert [(alert["labels"]["gpu"], alert["labels"]["xid"]) for alert in fired["KdtreeXid"]] == [("2", "31")]
    assert [(alert["labels"]["gpu"], alert["labels"]["xid"]) for alert in fired["KdtreeXidResetNeeded"]] == [("6", "79")]
    assert {rule["name"] for rule in host.rules() if rule["health"] == "ok"} == set(alerts()) | set(records())
    assert host.instant("kdtree_gpu_xid_errors_total")[(("gpu", "2"), ("xid", "31"))] == 2


def test_the_step_time_is_the_engines(host: LiveHost) -> None:
    step = until(lambda: host.instant(host.panel_query(expression("Verify step"))), "the step is recorded")
    assert step == {(): pytest.approx(4 * 0.002, rel=0.01)}
    assert host.instant(host.panel_query(expression("Accept length"))) == {(): 4}


# What says something only where something is wrong, or on another host than this one.
SILENT = {"kdtree_gpu_failure_info", "kdtree_gpu_up", "kdtree_nvml_up", "kdtree_nvml_failure_info", "kdtree_nvml_events_up", "kdtree_stats_up",
          "kdtree_stats_files", "kdtree_patch_processes", "kdtree_ranks_expected", "kdtree_rank_up", "kdtree_rank_active",
          "kdtree_verify_mismatches_total", "kdtree_host_up", "kdtree_trial", "kdtree_drift", "kdtree_gpus_expected", "kdtree_gpu_processes",
          "kdtree_gpu_tensor_active_ratio", "kdtree_gpu_ecc_errors_total", "kdtree_collector_age_seconds", "kdtree_rank_control_generation",
          "kdtree_moe_what_if_layer_rank_tokens_total", "kdtree_moe_what_if_peak_tokens_total",
          "kdtree_moe_what_if_expected_peak_tokens_total", "kdtree_moe_what_if_rank_straggler_layer_steps_total",
          "kdtree_moe_what_if_rank_idle_layer_steps_total", "kdtree_moe_what_if_expected_idle_layer_steps_total",
          "kdtree_moe_expert_tokens_total"}


@pytest.mark.parametrize("name", [name for name, metric in catalogue().items() if name == metric["name"]])
def test_the_catalogues_example_is_a_query(host: LiveHost, name: str) -> None:
    query = catalogue()[name]["example"].replace("[5m]", "[4s]").replace("[1h]", "[4s]")
    answer = host.instant(query) if name in SILENT else until(lambda: host.instant(query), query)
    assert all(math.isfinite(value) or name.endswith("distribution_ratio") for value in answer.values())


def test_a_lost_gpu_becomes_a_gap(host: LiveHost) -> None:
    """Its row ends, the other seven stay; no value is repeated and none is 0."""
    host.gpus["3"]["fail"] = "lost"
    host.instruct()
    query = host.panel_query(expression("GPU utilisation"))
    left = until(lambda: (now := host.instant(query)) and (("gpu", "3"),) not in now and now, "GPU 3's row ends")
    assert set(left) == {(("gpu", str(index)),) for index in range(GPUS) if index != 3}
    assert (("gpu", "3"),) not in host.instant(host.panel_query(expression("Power")))
    assert host.instant(host.panel_query(expression("GPU answers")))[(("gpu", "3"),)] == 0
    until(lambda: [rule for rule in host.rules() if rule["name"] == "KdtreeGpuLost" and rule.get("state") in ("pending", "firing")],
          "KdtreeGpuLost sees it")


def test_an_ended_rank_becomes_a_gap(host: LiveHost) -> None:
    host.ranks[5].kill()
    host.ranks[5].wait()
    query = host.panel_query(expression("Mode of each rank"))
    left = until(lambda: (now := host.instant(query)) and (("rank", "5"),) not in now and now, "rank 5's row ends")
    assert set(left) == {(("rank", str(rank)),) for rank in range(RANKS) if rank != 5}
    assert host.instant(host.panel_query(expression("State of each rank")))[(("rank", "5"),)] == 0
    assert (("rank", "5"),) not in host.instant(host.panel_query(expression("What has been compared")))
    until(lambda: [rule for rule in host.rules() if rule["name"] == "KdtreeRankMissing" and rule.get("state") in ("pending", "firing")],
          "KdtreeRankMissing sees it")
