# SPDX-License-Identifier: Apache-2.0
"""Every page of the runbooks, gone through on a host under systemd: the fault is made, the alert fires, the page's commands are run as
they stand and show what the page says, its remedy ends the alert. One host for all; rules and scrapes have their times shrunk.
"""

from __future__ import annotations

import struct
import time
import zlib
from pathlib import Path
from typing import Iterator

import pytest

from kdtree_host import COMMAND, RANKS, UNIT, KdtreeHost, engine_unit
from package import REPOSITORY
from watched_host import Page, Watched, commands

AGENT = "kdtree-agent.service"


@pytest.fixture(scope="module")
def watched(deployed_layer: Path, package_layer: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    with KdtreeHost([deployed_layer, package_layer]) as host:
        made = Watched(host, tmp_path_factory.mktemp("watched"))
        made.gpus()
        host.systemctl("restart", AGENT).check()
        armed(host)
        with made.prometheus():
            yield made


@pytest.fixture(autouse=True)
def well(watched: Watched, request: pytest.FixtureRequest) -> None:
    """Each scene begins with nothing wrong."""
    if request.function is test_no_command_was_left_out:
        return
    watched.host.fault()
    watched.gpus()
    try:
        watched.host.wait("nothing fires", lambda: not watched.firing(), 60)
    except AssertionError as error:
        raise AssertionError(f"{error}: {watched.firing()}") from None


def armed(host: KdtreeHost) -> None:
    host.wait_armed(90, 60)


def test_deploy(watched: Watched) -> None:
    """deploy.md from top to bottom, on a host that has been deployed already."""
    page = Page(watched, "deploy")
    page.diagnose("release")
    page.do("kdtreectl deploy --accept-engine", "kdtreectl mode validate")
    watched.host.wait_ranks("enough compares", lambda rank: rank["compares"] >= 30, 60)
    assert watched.run("deploy", "kdtreectl verdict").rc == 0
    page.do("kdtreectl mode on")
    assert watched.run("deploy", "kdtreectl status").rc == 0
    page.do("kdtreectl mode off", "kdtreectl deploy")


def test_mismatch(watched: Watched) -> None:
    page = Page(watched, "KdtreeVerifyMismatch", rank="3")
    watched.host.ctl("mode", "validate", "--yes").check()
    watched.host.fault("wrong_kernel:3")
    page.wait()
    page.diagnose("mismatch", "rank 3")
    assert "verdict" in page.do("kdtreectl mode on", rc=3)
    page.do("kdtreectl mode off")
    page.clears()
    watched.host.fault()
    assert "validate" in watched.run("KdtreeVerifyMismatch", "kdtreectl rollback --dry-run").out  # so the page says: stay


def test_rank_missing(watched: Watched) -> None:
    """The rank dies after a change of kdtree, which is undone in the end."""
    page = Page(watched, "KdtreeRankMissing", rank="5")
    watched.host.ctl("mode", "validate", "--yes").check()
    watched.host.fault("dead_rank_unnoticed:5")
    page.wait()
    page.diagnose('kdtree_rank_up{rank="5"} 0', 'kdtree_stats_files{state="dead"} 1', "rank 5")
    watched.host.fault()
    page.do("systemctl restart sglang.service")
    armed(watched.host)
    page.clears()
    page.do("kdtreectl rollback")


def test_kernel_error_and_a_patch_that_stands_aside(watched: Watched) -> None:
    error, refused = Page(watched, "KdtreeKernelError", rank="2"), Page(watched, "KdtreePatchRefused")
    watched.host.ctl("mode", "validate", "--yes").check()
    watched.host.fault("kernel_raises:2")
    refused.wait()
    error.diagnose("kernel failed", "kdtree")
    refused.diagnose("rank 2", "kernel failed", 'patch_state="refused"} 1', "stands aside")
    watched.host.fault()
    refused.do("kdtreectl mode off --cold")
    refused.clears()
    error.clears()
    missing = Page(watched, "KdtreeAllRanksMissing")
    missing.wait()
    missing.diagnose("off (cold)")
    error.do("kdtreectl mode off")
    armed(watched.host)
    missing.clears()


def test_all_ranks_missing(watched: Watched) -> None:
    page = Page(watched, "KdtreeAllRanksMissing")
    watched.host.systemctl("stop", UNIT).check()
    page.wait()
    page.diagnose("inactive (dead)", "60-kdtree.conf", "KDTREE_VERIFY=off")
    page.do("systemctl restart sglang.service")
    armed(watched.host)
    page.clears()


def test_mode_drift(watched: Watched) -> None:
    """Somebody writes a control file for a release that isn't there: no rank obeys it."""
    page = Page(watched, "KdtreeModeDrift", kind="mode")
    body = struct.pack("<8sIIQ64s", b"KDTCTRL1", 1, 1, 9999, b"another")  # agent/stats/control_abi.h: validate
    control = watched.host.path("/run/kdtree/control")
    control.write_bytes(body + struct.pack("<II", zlib.crc32(body), 0))
    page.wait()
    page.diagnose("validate, not off", 'mode="off"')
    page.do("kdtreectl mode off")
    page.clears()
    page.do("kdtreectl deploy")


def test_gpu_lost(watched: Watched) -> None:
    page = Page(watched, "KdtreeGpuLost", gpu="3")
    watched.gpus(g3={"fail": "lost"})
    page.wait()
    page.diagnose('kdtree_gpu_up{gpu="3"', 'reason="lost"', 'kdtree_gpu_info{gpu="3"')
    page.do("systemctl stop sglang.service")
    watched.gpus()  # the reboot that the page asks for
    page.do("systemctl restart kdtree-agent.service", "systemctl daemon-reload", "systemctl start sglang.service")
    armed(watched.host)
    page.clears()
    assert watched.run("KdtreeGpuLost", "kdtreectl status").rc == 0


def test_xid(watched: Watched) -> None:
    page = Page(watched, "KdtreeXid", gpu="2", xid="31")
    watched.gpus(xids=[{"id": 31, "gpu": 2, "xid": 31}])
    page.wait()
    page.diagnose('xid="31"} 1', 'kdtree_gpu_info{gpu="2"')
    page.do("kdtreectl mode off", "systemctl restart sglang.service")
    armed(watched.host)
    page.do("kdtreectl selftest")
    page.clears()


def test_xid_that_wants_a_reset(watched: Watched) -> None:
    page = Page(watched, "KdtreeXidResetNeeded", gpu="6", xid="79")
    watched.gpus(xids=[{"id": 79, "gpu": 6, "xid": 79}])
    page.wait()
    page.diagnose('xid="79"} 1', 'kdtree_gpu_up{gpu="6"')
    page.do("systemctl stop sglang.service kdtree-agent.service")
    watched.gpus()  # the reset
    page.do("systemctl start kdtree-agent.service sglang.service")
    armed(watched.host)
    page.clears()
    page.do("kdtreectl selftest")


def test_a_file_that_is_none(watched: Watched) -> None:
    page = Page(watched, "KdtreeStatsUnreadable", state="foreign")
    watched.host.write("/run/kdtree/stats/9999999.stats", "x" * 5000)
    page.wait()
    page.diagnose('kdtree_stats_files{state="foreign"} 1', "9999999.stats")
    page.do("systemctl restart kdtree-agent.service", "systemctl restart sglang.service")
    armed(watched.host)
    page.clears()
    page.do("kdtreectl deploy")


def test_agent_blind(watched: Watched) -> None:
    page = Page(watched, "KdtreeAgentBlind", collector="GPUs")
    watched.gpus(init="driver_not_loaded", load=2)
    page.wait()
    page.diagnose('kdtree_nvml_failure_info{reason="driver_not_loaded"} 1', "kdtree_nvml_up 0", "SUCCESS")
    watched.gpus()
    page.do("systemctl restart kdtree-agent.service")
    page.clears()
    watched.host.systemctl("stop", AGENT).check()
    gone = Page(watched, "KdtreeAgentBlind", collector="the agent")
    gone.wait()
    gone.do("systemctl restart kdtree-agent.service")
    gone.clears()


def test_trial(watched: Watched) -> None:
    """kdtreectl is killed while it waits for an engine that loads slowly."""
    host, page = watched.host, Page(watched, "KdtreeTrialUnconfirmed")
    before = host.engine("InvocationID")
    host.configure(modes={"validate": {"mem_fraction_static": 0.9}})
    host.fault("slow_start:60@KDTREE_VERIFY")
    job = host.start(["kdtreectl", "mode", "validate", "--yes"])
    host.wait("the engine is being restarted", lambda: host.engine("InvocationID") not in ("", before), 90)
    host.run(["kill", "-KILL", *host.run(["pgrep", "-x", "kdtreectl"]).check().out.split()]).check()
    job.communicate()
    page.wait()
    page.diagnose("cut off in the middle")
    host.fault()
    page.do("kdtreectl recover")
    page.clears()
    host.configure()
    armed(host)


def test_busy_without_tensor(watched: Watched) -> None:
    host, page = watched.host, Page(watched, "KdtreeGpuBusyWithoutTensor", gpu="6")
    host.ctl("mode", "validate", "--yes").check()
    watched.gpus(g6={"utilization": 99, "gpm": {"2": 4.0, "5": 0.1}})
    page.wait()
    page.diagnose('gpu="6"', 'by="engine"', 'mode="validate"')
    host.wait_ranks("enough compares", lambda rank: rank["compares"] >= 30, 60)
    assert watched.run("KdtreeGpuBusyWithoutTensor", "kdtreectl verdict").rc == 0
    page.do("kdtreectl mode on")
    watched.gpus()  # what kdtree's kernel does on a GPU
    page.clears()
    host.ctl("mode", "off", "--yes").check()


def switch_on(host: KdtreeHost) -> None:
    host.ctl("mode", "validate", "--yes").check()
    host.wait_ranks("enough compares", lambda rank: rank["compares"] >= 30, 60)
    host.ctl("mode", "on", "--yes").check()


def test_calls_handed_back(watched: Watched) -> None:
    """In mode on the model begins to use what kdtree's kernel doesn't have."""
    page = Page(watched, "KdtreeVerifyHandedBack", rank="4", reason="logit_cap")
    switch_on(watched.host)
    watched.host.fault("logit_cap:4")
    page.wait()
    page.diagnose('{reason="logit_cap"} => ', "mode       on")
    page.do("kdtreectl mode off")
    page.clears()


def test_a_step_that_collapsed(watched: Watched) -> None:
    """The engine's own kernel is slow, and somebody leaves mode on."""
    host, page = watched.host, Page(watched, "KdtreeStepTimeCollapsed")
    host.install_engine(engine_unit(COMMAND + " --enable-metrics"))
    armed(host)
    switch_on(host)
    host.fault("slow_kernel:0.5")
    time.sleep(25)  # in mode on nothing is slow, and the average of before is of that
    assert watched.query("kdtree:engine_step_seconds:rate5m") and not page.fires()
    host.ctl("mode", "off", "--yes").check()
    page.wait()
    page.diagnose('{by="engine"} => ', "kdtree:engine_step_seconds:rate5m", "mode       off")
    page.do("kdtreectl mode on")
    page.clears()
    host.fault()
    host.ctl("mode", "off", "--yes").check()
    host.install_engine()
    armed(host)


def test_experts_that_crowd_on_a_rank(watched: Watched) -> None:
    host, page = watched.host, Page(watched, "KdtreeMoeImbalance")
    host.install_engine(engine_unit(COMMAND + f" --ep-size {RANKS}"))
    armed(host)
    host.fault("few_experts")
    page.wait()
    page.diagnose('moe_rank="0"} => ', "rank 0", "what_if_peak_load_ratio")
    host.install_engine()  # EP 1, as the page says
    armed(host)
    page.clears()
    assert watched.query("kdtree_moe_what_if_peak_tokens_total") and not watched.query("kdtree_moe_peak_tokens_total")


def test_upgrade(watched: Watched) -> None:
    page = Page(watched, "upgrade")
    page.do("kdtreectl mode off", "systemctl stop sglang.service kdtree-agent.service")
    page.do("systemctl start sglang.service", "systemctl restart kdtree-agent.service")
    armed(watched.host)
    page.diagnose("release")
    assert watched.run("upgrade", "kdtreectl plan --accept-engine").rc == 0


def test_rollback_and_its_last_sections(watched: Watched) -> None:
    """A journal that can't be read, the engine that needs nothing of it, and the way off the host."""
    host, page = watched.host, Page(watched, "rollback")
    page.diagnose("60-kdtree.conf", "mode")
    host.write("/var/lib/kdtree/journal/active", "not a journal\nand no line of one\n", 0o600)
    done = host.ctl("mode", "validate", "--yes")
    assert done.rc != 0 and "journal" in done.err, done.err
    page.do("mv /var/lib/kdtree/journal/active /root/kdtree-journal-damaged", "kdtreectl mode off --cold")
    page.do("systemctl daemon-reload", "systemctl reset-failed sglang.service", "systemctl restart sglang.service")
    host.wait_healthy(90)
    page.do("kdtreectl recover", "kdtreectl deploy")
    armed(host)
    page.do("kdtreectl uninstall")
    assert "KDTREE_VERIFY" not in host.environment() and len(host.ranks()) < RANKS


def test_no_command_was_left_out(watched: Watched) -> None:
    """Every page's, after all of the above."""
    for path in sorted((REPOSITORY / "runbooks").glob("*.md")):
        left = watched.left_out(path)
        assert not left and commands(path), f"{path.name}: {left}"
