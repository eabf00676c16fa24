# SPDX-License-Identifier: Apache-2.0
"""Verbs that only tell: status, doctor, history, selftest, bench, heatmap; and the agent's metrics on a real host."""

from __future__ import annotations

import json
import re

import pytest

from kdtree_host import RANKS, UNIT, UNIT_PATH, KdtreeHost
from package import FAKE_GPUS

DROP_IN = f"{UNIT_PATH}.d/60-kdtree.conf"
METRICS = "http://127.0.0.1:9817/metrics"


def scrape(host: KdtreeHost) -> dict[str, float]:
    """series (name with labels, as printed) → value."""
    status, body = host.http(METRICS)
    assert status == 200
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in body.splitlines() if line and line[0] != "#"}


@pytest.fixture(scope="module")
def steady(deployed_layer, package_layer):
    """A deployed host in mode off that these tests only look at."""
    with KdtreeHost([deployed_layer, package_layer]) as machine:
        machine.wait_armed()
        yield machine


def test_status_of_a_good_host(steady):
    done = steady.ctl("status")
    assert done.rc == 0, done.out + done.err
    release = steady.path("/opt/kdtree/current").readlink().name
    assert release in done.out and "off" in done.out and f"{RANKS}" in done.out
    assert json.loads(steady.ctl("status", "--json").check().out)


def test_status_needs_no_root(steady):
    assert steady.ctl("status", user="sglang").rc == 0


def test_doctor_of_a_good_host(steady):
    done = steady.ctl("doctor")
    assert done.rc == 0, done.out
    json.loads(steady.ctl("doctor", "--json").out)


def test_doctor_works_before_anything_is_deployed(package_layer):
    with KdtreeHost([package_layer]) as bare:
        done = bare.ctl("doctor")
        assert done.rc == 1 and "/etc/kdtree/kdtree.json" in done.out, done.out
        bare.configure()
        done = bare.ctl("doctor")
        assert done.rc == 1 and UNIT in done.out, done.out


def test_history_tells_of_the_deploy(steady):
    entries = steady.facts("history")
    assert [(entry["verb"], entry["result"]) for entry in entries] == [("deploy", "good")]
    assert "deploy" in steady.ctl("history").check().out


def test_selftest_says_the_device(steady):
    done = steady.ctl("selftest")
    assert done.rc == 0 and "cpu" in done.out.lower(), done.out + done.err
    assert re.search(r"^worst +case all, max_abs 0\.0$", done.out, re.M), done.out


def test_bench_is_the_releases_own(steady):
    done = steady.ctl("bench", "--json")
    assert done.rc == 0 and json.loads(done.out)["points"] == [], done.out + done.err
    assert "1 x 1000" in done.err  # its progress


def test_bench_of_the_running_engine_names_mode_and_release(steady):
    done = steady.ctl("bench", "--engine", "http://127.0.0.1:30000", "--contexts", "200,100:2", "--steps", "6", "--json")
    assert done.rc == 0, done.err
    report = json.loads(done.out)
    assert (report["mode"], report["release"]) == ("off", steady.path("/opt/kdtree/current").readlink().name)
    assert [(point["context"], point["batch"]) for point in report["points"]] == [(200, 1), (100, 2)]
    assert all(point["ms"] > 0 and point["tokens_a_step"] == 3 for point in report["points"])


def test_heatmap_draws_eight_rows(steady):
    done = steady.ctl("heatmap", "--once")
    assert done.rc == 0, done.err
    assert "\x1b" not in done.out  # not a terminal
    rows = [line for line in done.out.splitlines() if re.match(r"\s*(gpu ?)?[0-7]\b", line, re.IGNORECASE)]
    assert len(rows) >= 8, done.out


def test_verdict_without_compares_is_insufficient(steady):
    done = steady.ctl("verdict")
    assert done.rc == 1 and "insufficient" in done.out


def test_metrics_of_eight_gpus_and_eight_ranks(steady):
    def count(prefix: str, value: float | None = None) -> int:
        return len([name for name, seen in scrape(steady).items() if name.startswith(prefix) and value in (None, seen)])
    steady.wait("the agent has sampled eight GPUs and read eight ranks",
                lambda: count("kdtree_gpu_utilization_ratio{") == 8 and count("kdtree_rank_up{", 1) == RANKS)
    series = scrape(steady)
    release = steady.path("/opt/kdtree/current").readlink().name
    assert any(name.startswith("kdtree_release_info{") and release in name for name in series)
    assert len([name for name in series if name.startswith("kdtree_rank_mode{") and 'mode="off"' in name and series[name] == 1]) == RANKS
    assert not any(value for name, value in series.items() if name.startswith("kdtree_drift{"))


def test_each_gpus_utilisation_is_the_one_it_has(steady):
    given = {str(gpu): {"utilization": 10 * gpu + 5} for gpu in range(8)}
    steady.write(FAKE_GPUS, json.dumps({"gpus": given}))
    wanted = {f'kdtree_gpu_utilization_ratio{{gpu="{gpu}",uuid="GPU-fa4e0000-0000-0000-0000-{gpu:012d}"}}': (10 * gpu + 5) / 100 for gpu in range(8)}
    steady.wait("the agent shows all eight", lambda: {
        name: value for name, value in scrape(steady).items() if name.startswith("kdtree_gpu_utilization_ratio{")} == pytest.approx(wanted), 20)


def test_the_agent_listens_on_loopback_only_and_is_no_root(steady):
    listening = steady.run(["ss", "-ltnHp"]).check().out
    assert "127.0.0.1:9817" in listening
    assert all(line.split()[3].startswith(("127.0.0.1:", "[::1]:")) for line in listening.splitlines())
    pid = steady.show("kdtree-agent", "MainPID")["MainPID"]
    status = steady.run(["cat", f"/proc/{pid}/status"]).check().out
    assert re.search(r"^Uid:\t(?!0\b)", status, re.M) and re.search(r"^NoNewPrivs:\t1$", status, re.M)
    assert re.search(r"^CapEff:\t0+$", status, re.M)


def test_metrics_follow_a_live_switch(host):
    assert host.ctl("mode", "validate", "--yes").rc == 0
    wanted = {f'kdtree_mode{{mode="{mode}"}}': float(mode == "validate") for mode in ("off", "validate", "on")}
    host.wait("the agent shows the mode and no drift", lambda: (lambda series: {
        name: value for name, value in series.items() if name.startswith("kdtree_mode{")} == wanted and not any(
        value for name, value in series.items() if name.startswith("kdtree_drift{")))(scrape(host)), 20)


def test_systemd_watches_the_agent(host):
    host.wait("the agent is ready", lambda: host.systemctl("is-active", "kdtree-agent").out == "active\n")
    agent = host.show("kdtree-agent", "Type", "WatchdogUSec", "NRestarts", "MainPID")
    assert agent["Type"] == "notify" and agent["WatchdogUSec"] not in ("0", "infinity")
    host.run(["kill", "-STOP", agent["MainPID"]]).check()
    host.wait("the watchdog has restarted it", lambda: host.show("kdtree-agent", "NRestarts")["NRestarts"] != agent["NRestarts"], 60)
    host.wait("it serves again", lambda: host.http(METRICS)[0] == 200, 30)


def test_drift_by_hand_is_seen_by_status_doctor_and_metrics(host):
    host.write(DROP_IN, host.read(DROP_IN).replace("KDTREE_VERIFY=off", "KDTREE_VERIFY=on"))
    status = host.ctl("status")
    assert status.rc == 1 and DROP_IN in status.out + status.err, status.out
    doctor = host.ctl("doctor")
    assert doctor.rc == 1, doctor.out


def drift(host: KdtreeHost) -> dict[str, str]:
    """kind → text of what status --json, as root, has to object."""
    return {line["kind"]: line["text"] for line in host.facts("status")["drift"]}


def test_drift_of_the_unit_is_seen_in_all_its_ways(host):
    """Files that systemd has not loaded; a later drop-in, and an EnvironmentFile of one, that override ours."""
    assert drift(host) == {}
    later = f"{UNIT_PATH}.d/90-later.conf"
    host.write(later, "[Service]\nEnvironment=KDTREE_VERIFY=on\n")
    assert "newer than what systemd has loaded" in drift(host)["reload"]
    assert host.ctl("doctor").rc == 1
    host.systemctl("daemon-reload").check()
    seen = drift(host)
    assert "reload" not in seen and "is on, not off" in seen["environment"], seen
    assert "later drop-in" in host.ctl("status").out
    host.write(later, "[Service]\nEnvironmentFile=/etc/default/later\n")
    host.write("/etc/default/later", "KDTREE_VERIFY=validate\n")
    host.systemctl("daemon-reload").check()
    seen = drift(host)
    assert "is validate by /etc/default/later, not off" in seen.get("environment", ""), seen
    assert host.ctl("status", user="sglang").rc == 1
    host.write("/etc/default/later", "PYTHONPATH=/opt/theirs\n")
    assert "PYTHONPATH" in drift(host)["environment"]
    host.path(later).unlink()
    host.systemctl("daemon-reload").check()
    assert drift(host) == {}


def test_ranks_that_refuse_before_they_know_their_number_have_a_row(host):
    """An engine that nobody has accepted: no process is let as far as to read its rank."""
    host.write(f"/etc/systemd/system/{UNIT}.d/90-mine.conf", "[Service]\nEnvironment=KDTREE_ACCEPT_ENGINE=none\n")
    host.systemctl("daemon-reload").check()
    host.systemctl("restart", UNIT).check()
    host.wait_healthy()
    host.wait("every rank has refused", lambda: len(host.facts("status")["refused"]) >= RANKS, 60, 0.5)
    status = host.facts("status")
    assert status["ranks_armed"] == 0 and all("unknown engine" in one["reason"] for one in status["refused"]), status
    text = host.ctl("status").out
    rows = [line for line in text.splitlines() if line.startswith("?")]
    assert len(rows) == len(status["refused"]) and all("refused" in row for row in rows), text
    assert host.http("http://127.0.0.1:30000/health")[0] == 200  # the engine serves, by its own kernel


def test_a_library_that_is_not_what_its_manifest_lists_is_not_loaded(host):
    release = host.path("/opt/kdtree/current").readlink().name
    with open(host.path(f"/opt/kdtree/releases/{release}/lib/libkdtree_torch.so"), "ab") as file:
        file.write(b"x")
    host.systemctl("restart", UNIT).check()
    host.wait_healthy()
    host.wait_ranks("each rank says so", lambda rank: rank["patch_state"] == 2 and "libkdtree_torch.so" in rank["reason"])
    assert host.facts("status")["ranks_armed"] == 0
    assert host.http("http://127.0.0.1:30000/health")[0] == 200


def test_a_dead_rank_is_missing_everywhere(host):
    host.fault("dead_rank_unnoticed:6")
    host.wait("rank 6 is gone", lambda: 6 not in host.ranks(), 20)
    status = host.ctl("status")
    assert status.rc == 1 and "6" in status.out, status.out
    host.wait("the metrics say so", lambda: not any(name.startswith('kdtree_rank_up{rank="6"') and value for name, value in scrape(host).items()), 20)
    host.wait("its counters are gone", lambda: not any(name.startswith("kdtree_verify_") and 'rank="6"' in name for name in scrape(host)), 20)
