# SPDX-License-Identifier: Apache-2.0
"""kdtree-agent as an operator's Prometheus sees it: real program, fake GPUs, stats files of the product's own writer."""
from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time

from conftest import Agent, built, one, parse

GIB = 1 << 30


def promtool(text: str) -> str:
    """What `promtool check metrics` says; "" = nothing to complain about."""
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
    return done.stdout + done.stderr if done.returncode or done.stderr else ""


RANK = """
step = 0
while True:
    step += 1
    handed_back = [0] * f.MAX_REASONS
    handed_back[f.BACK_SINKS] = 3
    writer.publish({"tp_rank": %(rank)d, "tp_size": 4, "moe_ep_rank": %(rank)d, "moe_ep_size": 4, "release_id": "r1",
                    "engine_version": "0.5.17", "torch_version": "2.11.0", "device_name": "cpu", "patch_state": f.ACTIVE,
                    "mode": f.VALIDATE, "control_generation": 9, "sort_state": 1, "graphs": 0, "calls_kernel": 40,
                    "calls_engine": 50 + %(rank)d, "handed_back": handed_back, "compares": 50, "mismatches": %(rank)d,
                    "max_abs": 0.125, "max_ulp": 2.0, "sum_mean_ulp": 0.5, "max_mean_ulp": 0.25, "longest_prefix": 4096, "kv_pairs": 10,
                    "kv_contiguous_pairs": 5, "moe_layers": 2, "moe_experts": 8, "moe_top_k": 2, "moe_first_layer": 1,
                    "moe_steps": step, "moe_tokens": 18 * step},
                   {1: (20, 40), 2: (30, 60)},
                   [(f.SECTION_EXPERT_TOKENS, 2, 8, array("Q", [step * e for e in range(1, 9)] * 2)),
                    (f.SECTION_UNIQUE_EXPERTS, 2, 1, array("Q", [8 * step] * 2)),
                    (f.SECTION_LAYER_STEPS, 2, 1, array("Q", [step] * 2)),
                    (f.SECTION_IDLE_RANKS, 2, 4, array("Q", [step, 0, 0, 0] * 2)),
                    (f.SECTION_PEAKS, 2, 1, array("Q", [20 * step] * 2)),
                    (f.SECTION_STRAGGLERS, 2, 4, array("Q", [0, 0, 0, step * f.STRAGGLER_SHARE] * 2)),
                    (f.SECTION_PASS_ROWS, 1, 2, array("Q", [18, step]))])
    time.sleep(0.1)
"""


def test_eight_gpus_show_the_very_values_they_were_given(agent: Agent) -> None:
    agent.gpus({"gpus": {str(i): {"utilization": 11 * i, "memory_used": (i + 1) * GIB, "power_mw": 100_000 + i, "temperature": 40 + i,
                                  "pcie_rx_kb": i, "pcie_tx_kb": 2 * i} for i in range(8)}})
    agent.start()
    agent.until(lambda: len(agent.family("kdtree_gpu_pcie_transmit_bytes_per_second")) == 8, "eight GPUs are sampled")
    series = agent.series()
    for i in range(8):
        for name, wanted in {"utilization_ratio": 11 * i / 100, "memory_used_bytes": (i + 1) * GIB, "memory_total_bytes": 96 * GIB,
                             "power_watts": 100 + i / 1000, "temperature_celsius": 40 + i, "pcie_receive_bytes_per_second": 1000 * i,
                             "pcie_transmit_bytes_per_second": 2000 * i, "up": 1}.items():
            value = one(series, f"kdtree_gpu_{name}", gpu=str(i), uuid=f"GPU-fa4e0000-0000-0000-0000-{i:012d}")
            assert value is not None and abs(value - wanted) < 1e-9, (i, name, value)
    assert series["kdtree_gpus_visible", frozenset()] == 8
    assert len(agent.family("kdtree_gpu_info")) == 8


def test_only_the_info_metric_names_a_board(agent: Agent) -> None:
    agent.start()
    agent.until(lambda: len(agent.family("kdtree_gpu_utilization_ratio")) == 8, "eight GPUs are sampled")
    for name, labels in agent.series():
        assert name == "kdtree_gpu_info" or not {"name", "driver", "pci_bus_id"} & set(dict(labels)), name


def test_a_burst_between_two_scrapes_is_seen(agent: Agent) -> None:
    """One sample in ten at 100 %: the mean, the highest and the histogram have it, whatever the moment of the scrape."""
    agent.gpus({"count": 1, "gpus": {"0": {"utilization": [0] * 9 + [100], "step_ms": 20}}})
    agent.start()
    agent.until(lambda: (agent.value("kdtree_gpu_utilization_distribution_ratio_count") or 0) > 150, "samples were taken")
    series = agent.series()
    total = one(series, "kdtree_gpu_utilization_distribution_ratio_count")
    assert abs(one(series, "kdtree_gpu_utilization_distribution_ratio_sum") / total - 0.1) < 0.02
    assert abs(one(series, "kdtree_gpu_utilization_distribution_ratio_bucket", le="0.99") / total - 0.9) < 0.02
    assert one(series, "kdtree_gpu_utilization_max_ratio") == 1
    assert abs(one(series, "kdtree_gpu_utilization_ratio") - 0.1) < 0.05


def test_a_driver_that_is_loaded_anew_is_survived(agent: Agent) -> None:
    agent.gpus({"driver": "580.1"})
    agent.start()
    agent.until(lambda: agent.value("kdtree_nvml_events_up") == 1, "events are waited for")
    pid = agent.process.pid
    agent.gpus({"driver": "590.2", "load": 2})
    agent.until(lambda: agent.value("kdtree_gpu_info", gpu="0", driver="590.2") == 1, "the new driver is seen", 60)
    agent.until(lambda: len(agent.family("kdtree_gpu_utilization_ratio")) == 8 and agent.value("kdtree_nvml_events_up") == 1, "all is back")
    assert agent.process.pid == pid and agent.process.poll() is None


def test_a_hung_gpu_delays_no_scrape_and_no_end(agent: Agent) -> None:
    agent.start()
    agent.until(lambda: len(agent.family("kdtree_gpu_utilization_ratio")) == 8, "eight GPUs are sampled")
    agent.gpus({"gpus": {"3": {"fail": "hung"}, "4": {"fail": "lost"}, "5": {"pcie_delay_ms": 2000}}})
    agent.until(lambda: agent.value("kdtree_gpu_failure_info", gpu="3", reason="hung") == 1, "the hung GPU is told")
    agent.until(lambda: agent.value("kdtree_gpu_failure_info", gpu="4", reason="lost") == 1, "the lost GPU is told")
    shown = {dict(labels)["gpu"] for labels in agent.family("kdtree_gpu_utilization_ratio")}
    assert shown == {"0", "1", "2", "5", "6", "7"}
    assert agent.value("kdtree_gpu_up", gpu="3") == 0
    assert agent.value("kdtree_gpu_sample_age_seconds", gpu="3") > 4
    agent.until(lambda: "GPU 3 is not usable (hung)" in agent.log.read_text(), "the log says so")
    assert agent.get("/healthz")[0] == 200
    assert agent.stop() == 0


def test_nvml_failures_are_named_and_nothing_is_invented(agent: Agent) -> None:
    agent.gpus({"init": "driver_mismatch"})
    agent.start()
    agent.until(lambda: agent.value("kdtree_nvml_failure_info", reason="driver_mismatch") == 1, "the mismatch is told")
    names = {name for name, _ in agent.series()}
    assert agent.value("kdtree_nvml_up") == 0
    assert not [name for name in names if name.startswith("kdtree_gpu")]
    agent.until(lambda: "Driver/library version mismatch" in agent.log.read_text(), "the log says so")


def test_xids_are_counted_each(agent: Agent) -> None:
    agent.start()
    agent.until(lambda: agent.value("kdtree_nvml_events_up") == 1, "events are waited for")
    agent.gpus({"xids": [{"id": 1, "gpu": 6, "xid": 79}, {"id": 2, "gpu": 6, "xid": 79}]})
    agent.until(lambda: agent.value("kdtree_gpu_xid_errors_total", gpu="6", xid="79") == 2, "both events are counted")
    assert abs(agent.value("kdtree_gpu_xid_last_timestamp_seconds", gpu="6", xid="79") - time.time()) < 60


def test_ranks_and_experts_as_the_writer_published_them(agent: Agent) -> None:
    agent.configure(ranks=4)
    (agent.root / "opt/kdtree/current").symlink_to("releases/r1")
    for rank in range(4):
        agent.publish(RANK % {"rank": rank})
    agent.start()
    agent.until(lambda: sum(agent.family("kdtree_rank_up").values()) == 4, "four ranks are up")
    agent.until(lambda: agent.value("kdtree_moe_peak_load_ratio"), "experts were watched for a while")
    series = agent.series()

    def value(name: str, **labels: str) -> float | None:
        return series.get((name, frozenset(labels.items())))

    for rank in map(str, range(4)):
        assert value("kdtree_verify_calls_total", rank=rank, by="kernel") == 40
        assert value("kdtree_verify_calls_total", rank=rank, by="engine") == 50 + int(rank)
        assert value("kdtree_verify_handed_back_total", rank=rank, reason="sinks") == 3
        assert value("kdtree_verify_mismatches_total", rank=rank) == int(rank)
        assert value("kdtree_verify_batch_compares_total", rank=rank, batch="2") == 30
        assert value("kdtree_kv_contiguous_ratio", rank=rank) == 0.5
        assert value("kdtree_rank_mode", rank=rank, mode="validate") == 1
        assert value("kdtree_rank_graphs", rank=rank) == 0
        assert value("kdtree_rank_control_generation", rank=rank) == 9
    steps = value("kdtree_moe_steps_total")
    loads = [value("kdtree_moe_rank_tokens_total", moe_rank=str(rank)) for rank in range(4)]
    assert loads == [2 * steps * (4 * rank + 3) for rank in range(4)]  # experts 2r + 1 and 2r + 2, two layers
    assert value("kdtree_moe_layer_rank_tokens_total", layer="2", moe_rank="3") == 15 * steps
    assert value("kdtree_moe_rank_idle_layer_steps_total", moe_rank="0") == 2 * steps
    assert abs(value("kdtree_moe_peak_load_ratio") - 15 / (36 / 4)) < 1e-9
    assert value("kdtree_moe_expected_peak_load_ratio") > 1
    assert value("kdtree_moe_rank_straggler_layer_steps_total", moe_rank="3") == 2 * steps
    assert value("kdtree_moe_peak_tokens_total", layer="2") == 20 * steps
    assert value("kdtree_moe_expected_peak_tokens_total", layer="2") > 0
    assert value("kdtree_moe_expected_idle_layer_steps_total") > 0
    assert value("kdtree_drift", kind="release") == 0
    assert value("kdtree_drift", kind="ranks") == 0
    assert value("kdtree_release_info", release="r1") == 1
    assert value("kdtree_stats_files", state="ok") == 4


def test_a_rank_that_dies_or_falls_silent_takes_its_values_with_it(agent: Agent) -> None:
    agent.configure(ranks=4)
    agent.start()
    dying, silent = (agent.publish(RANK % {"rank": rank}) for rank in range(2))
    agent.until(lambda: sum(agent.family("kdtree_rank_up").values()) == 2, "two ranks are up")
    dying.kill()
    dying.wait()
    silent.send_signal(signal.SIGSTOP)
    agent.until(lambda: agent.value("kdtree_stats_files", state="dead") == 1, "the dead one is told")
    agent.until(lambda: agent.value("kdtree_stats_files", state="stale") == 1, "the silent one is told")
    assert sum(agent.family("kdtree_rank_up").values()) == 0
    assert agent.family("kdtree_verify_calls_total") == {}
    assert agent.family("kdtree_moe_rank_tokens_total") == {}
    silent.send_signal(signal.SIGCONT)
    agent.until(lambda: agent.value("kdtree_rank_up", rank="1") == 1, "it is back")


def test_hostile_files_are_counted_and_harm_nothing(agent: Agent) -> None:
    (agent.stats / "1.stats").write_bytes(b"x" * 10_000)
    (agent.stats / "2.stats").symlink_to("/etc/passwd")
    os.mkfifo(agent.stats / "3.stats")
    with (agent.stats / "4.stats").open("wb") as huge:
        huge.truncate(1 << 40)
    (agent.stats / "5.stats").write_bytes(b"KDTSTAT1")
    (agent.stats / "6.stats").write_bytes(bytes(4096))
    agent.start()
    states = {dict(labels)["state"]: value for labels, value in agent.family("kdtree_stats_files").items() if value}
    assert states == {"foreign": 1, "not_regular": 2, "too_large": 1, "truncated": 1, "torn": 1}
    assert agent.value("kdtree_stats_up") == 1


def test_a_label_of_any_bytes_leaves_the_scrape_valid(agent: Agent) -> None:
    agent.publish("""
while True:
    writer.publish({"tp_rank": 0, "release_id": 'a"b\\\\c\\nd\\u00e9', "patch_state": f.ACTIVE})
    time.sleep(0.1)
""")
    agent.start()
    agent.until(lambda: agent.value("kdtree_rank_up", rank="0") == 1, "the rank is up")
    text = agent.get("/metrics")[1]
    assert promtool(text) == ""
    assert 'release="a\\"b\\\\c?d??"' in text


def test_configuration_and_control_file_that_cant_be_used(agent: Agent) -> None:
    (agent.root / "etc/kdtree/kdtree.json").write_text("{")
    (agent.root / "run/kdtree/control").write_bytes(b"nonsense")
    agent.start()
    assert agent.value("kdtree_host_up") == 0
    assert agent.family("kdtree_mode") == {} and agent.family("kdtree_ranks_expected") == {}
    agent.until(lambda: "kdtree.json" in agent.log.read_text() and "control" in agent.log.read_text(), "the log names both")
    agent.configure(ranks=2)
    (agent.root / "run/kdtree/control").unlink()
    agent.until(lambda: agent.value("kdtree_host_up") == 1, "the repaired files are read")
    assert agent.value("kdtree_ranks_expected") == 2


def test_every_series_is_in_the_catalogue_and_promtool_is_content(agent: Agent) -> None:
    agent.configure(ranks=4)
    agent.gpus({"gpus": {"1": {"fail": "lost"}}, "xids": [{"id": 1, "gpu": 0, "xid": 31}]})
    agent.publish(RANK % {"rank": 0})
    agent.start()
    agent.until(lambda: agent.value("kdtree_moe_peak_load_ratio"), "experts are seen")
    agent.until(lambda: agent.family("kdtree_gpu_xid_errors_total"), "the XID is seen")
    text = agent.get("/metrics")[1]
    assert promtool(text) == ""
    listed = json.loads(subprocess.run([built("kdtree-agent"), "--list-metrics=json"], check=True, capture_output=True).stdout)
    catalogue = {metric["name"]: metric for metric in listed["metrics"]}
    for name, labels in parse(text):
        family = name if name in catalogue else name.rpartition("_")[0]  # a histogram's own
        assert {label for label, _ in labels} - {"le"} == set(catalogue[family]["labels"]), name
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            assert catalogue[name]["type"] == kind
        if line.startswith("# HELP "):
            assert catalogue[line.split()[2]]["help"] == line.split(" ", 3)[3]


def test_paths_and_methods(agent: Agent) -> None:
    agent.start()
    assert agent.get("/")[0] == 200 and 'href="metrics"' in agent.get("/")[1]
    assert agent.get("/nothing")[0] == 404
    assert agent.get("/metrics", "POST")[0] == 405
    assert agent.get("/metrics?x=1")[0] == 200


def test_it_ends_at_sigterm_and_gives_its_port_back(agent: Agent) -> None:
    agent.start()
    assert agent.stop() == 0
    agent.start()
    assert agent.get("/metrics")[0] == 200


def test_a_port_in_use_is_told_in_one_line(agent: Agent) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = subprocess.run([built("kdtree-agent"), "--root", agent.root, "--listen", address], capture_output=True, text=True, timeout=20)
    assert done.returncode == 3
    assert address in done.stderr and done.stderr.count("\n") == 1


def test_the_listening_address_comes_from_the_configuration(agent: Agent) -> None:
    agent.configure(agent={"listen": f"127.0.0.1:{agent.port}"})
    command = [built("kdtree-agent"), "--root", agent.root, "--nvml", built("libnvidia-ml.so.1")]
    with agent.log.open("w") as log:
        agent.process = subprocess.Popen(command, stderr=log)
    agent.until(lambda: agent.get("/metrics")[0] == 200, "it listens where the configuration says")


def test_a_change_on_trial_is_told(agent: Agent) -> None:
    state = agent.root / "var/lib/kdtree/state.json"
    state.parent.mkdir(parents=True)
    agent.start()
    assert agent.value("kdtree_trial") is None and agent.value("kdtree_host_up") == 1
    for trial in (True, False):
        state.write_text(json.dumps({"format": 1, "trial": trial}))
        agent.until(lambda: agent.value("kdtree_trial") == trial, f"trial is {trial}")
    state.write_text("{")
    agent.until(lambda: agent.value("kdtree_host_up") == 0, "a damaged state is told")
    assert agent.value("kdtree_trial") is None


def test_experts_only_on_request(agent: Agent) -> None:
    agent.publish(RANK % {"rank": 0})
    agent.start()
    agent.until(lambda: agent.value("kdtree_moe_steps_total"), "experts are seen")
    assert agent.family("kdtree_moe_expert_tokens_total") == {}
    text = agent.get("/metrics/experts")[1]
    assert promtool(text) == ""
    experts = parse(text)
    assert len(experts) == 2 * 8
    loads = [one(experts, "kdtree_moe_expert_tokens_total", layer="2", expert=str(e)) for e in range(8)]
    assert [load / loads[0] for load in loads] == list(range(1, 9))


def test_systemd_is_told_ready_watchdog_and_stopping(agent: Agent) -> None:
    path = str(agent.root / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.bind(path)
        notify.settimeout(20)
        agent.gpus({"init": "hung"})
        agent.start(NOTIFY_SOCKET=path)
        told = notify.recv(4096).decode()
        assert told.startswith("READY=1\nSTATUS=serving http://127.0.0.1:")
        assert notify.recv(4096) == b"WATCHDOG=1"  # although NVML hangs: a restart would not help
        agent.process.send_signal(signal.SIGTERM)
        while (told := notify.recv(4096)) == b"WATCHDOG=1":
            pass
        assert told == b"STOPPING=1"
        assert agent.process.wait(10) == 0


def test_options_that_are_wrong_get_one_line(agent: Agent) -> None:
    for arguments in (["--liste", "x"], ["--listen", "nowhere"], ["--list-metrics=xml"]):
        done = subprocess.run([built("kdtree-agent"), "--root", agent.root, *arguments], capture_output=True, text=True, timeout=20)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done
