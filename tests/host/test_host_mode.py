# SPDX-License-Identifier: Apache-2.0
"""`mode` and `verdict`: live switches, switches by restart, what `on` asks for."""

from __future__ import annotations

from kdtree_host import RANKS, UNIT, KdtreeHost

OFF, VALIDATE, ON = 0, 1, 2
DROP_IN = f"/etc/systemd/system/{UNIT}.d/60-kdtree.conf"


def switch(host: KdtreeHost, mode: str, *args: str):
    return host.ctl("mode", mode, "--yes", *args)


def modes(host: KdtreeHost) -> set[int]:
    return {rank["mode"] for rank in host.ranks().values()}


def clean(host: KdtreeHost) -> None:
    """Brings the host to a clean verdict in validate."""
    assert switch(host, "validate").rc == 0
    host.wait_ranks("enough compares", lambda rank: rank["compares"] >= 30)
    assert host.ctl("verdict").rc == 0


def test_off_validate_on_off_live(host):
    engine = host.engine("InvocationID", "MainPID")
    pids = {rank: values["pid"] for rank, values in host.ranks().items()}
    generations = []
    for mode, word in (("validate", VALIDATE), ("on", ON), ("off", OFF)):
        if mode == "on":
            host.wait_ranks("enough compares", lambda rank: rank["compares"] >= 30)
            assert host.ctl("verdict").rc == 0
        done = switch(host, mode)
        assert done.rc == 0, done.err
        # kdtreectl is back: every rank already is in the mode, in the processes that it had.
        assert modes(host) == {word}
        assert {rank: values["pid"] for rank, values in host.ranks().items()} == pids
        assert host.engine("InvocationID", "MainPID") == engine
        generations.append({rank["control_generation"] for rank in host.ranks().values()})
        # A restart would come up in the same mode, and systemd has been told.
        assert f"KDTREE_VERIFY={mode}" in host.read(DROP_IN) and host.engine("NeedDaemonReload") == "no"
        assert f"KDTREE_VERIFY={mode}" in host.engine("Environment").split()
    assert all(len(seen) == 1 for seen in generations) and generations[0] < generations[1] < generations[2] or \
        [min(seen) for seen in generations] == sorted(min(seen) for seen in generations)
    assert host.ctl("mode").check().out.split()[0] == "off"


def test_counters_tell_who_answered(host):
    clean(host)
    before = host.ranks()
    assert switch(host, "on").rc == 0
    host.wait_ranks("kdtree's kernel answers", lambda rank: rank["calls_kernel"] >= before[rank["tp_rank"]]["calls_kernel"] + 20)
    assert switch(host, "off").rc == 0
    kernel = {rank: values["calls_kernel"] for rank, values in host.ranks().items()}
    engine = {rank: values["calls_engine"] for rank, values in host.ranks().items()}
    host.wait_ranks("the engine's kernel answers", lambda rank: rank["calls_engine"] >= engine[rank["tp_rank"]] + 20)
    assert all(host.ranks()[rank]["calls_kernel"] - kernel[rank] <= 4 for rank in kernel)  # a step under way at the switch


def test_a_restart_comes_up_in_the_same_mode(host):
    clean(host)
    host.systemctl("restart", UNIT).check()
    host.wait_ranks("every rank is back in validate", lambda rank: rank["patch_state"] == 1 and rank["mode"] == VALIDATE, 40)
    assert host.ctl("status").rc == 0


def test_on_without_a_verdict_is_refused(host):
    for _ in range(2):
        done = switch(host, "on")
        assert done.rc == 3 and "verdict" in done.err, done.err
        assert modes(host) == {OFF}


def test_on_with_an_insufficient_verdict_is_refused_and_force_is_recorded(host):
    host.configure(validate={"min_compares": 10 ** 9})
    assert switch(host, "validate").rc == 0
    verdict = host.ctl("verdict")
    assert verdict.rc == 1 and "insufficient" in verdict.out
    done = switch(host, "on")
    assert done.rc == 3 and "insufficient" in done.err, done.err
    assert modes(host) == {VALIDATE}
    assert switch(host, "on", "--force").rc == 0
    assert modes(host) == {ON}
    assert host.facts("history")[-1]["forced"] is True


def test_a_mismatch_on_one_rank_is_a_mismatch(host):
    host.fault("wrong_kernel:3@KDTREE_VERIFY")
    assert switch(host, "validate").rc == 0
    host.wait("rank 3 has mismatches", lambda: host.ranks()[3]["mismatches"] > 0, 20)
    verdict = host.ctl("verdict")
    assert verdict.rc == 1 and "mismatch" in verdict.out
    done = switch(host, "on")
    assert done.rc == 3 and "mismatch" in done.err, done.err
    assert modes(host) == {VALIDATE}


def test_a_silent_rank_makes_the_verdict_insufficient(host):
    clean(host)
    host.run(["kill", "-STOP", str(host.ranks()[5]["pid"])]).check()
    host.wait("the silence is noticed", lambda: host.ctl("verdict").rc == 1, 30)
    done = switch(host, "on", "--timeout", "5")
    assert done.rc == 3, done.err


def test_modes_with_other_flags_restart_the_engine(host):
    host.configure(modes={"validate": {"mem_fraction_static": 0.9}})
    before = host.engine("InvocationID")
    done = switch(host, "validate")
    assert done.rc == 0, done.err
    assert host.engine("InvocationID") != before
    argv = host.command_line()
    assert argv[argv.index("--mem-fraction-static") + 1] == "0.9"
    assert switch(host, "off").rc == 0
    argv = host.command_line()
    assert argv[argv.index("--mem-fraction-static") + 1] == "0.94"


def test_cold_is_an_engine_without_the_patch_and_the_way_back(host):
    before = host.engine("InvocationID")
    done = switch(host, "off", "--cold")
    assert done.rc == 0, done.err
    assert host.engine("InvocationID") != before
    assert "KDTREE_VERIFY" not in host.environment()
    assert host.ranks() == {}
    assert host.ctl("status").rc == 0
    done = switch(host, "off")
    assert done.rc == 0, done.err
    assert len(host.ranks()) == RANKS and "KDTREE_VERIFY" in host.environment()


def test_a_switch_to_the_present_mode_changes_nothing(host):
    before = (host.engine("InvocationID"), host.tree("/etc", "/opt"))
    assert switch(host, "off").rc == 0
    assert (host.engine("InvocationID"), host.tree("/etc", "/opt")) == before


def test_a_dry_run_switches_nothing(host):
    done = switch(host, "validate", "--dry-run")
    assert done.rc == 0 and "validate" in done.out
    assert modes(host) == {OFF}


def test_without_yes_and_without_a_terminal_nothing_happens(host):
    done = host.ctl("mode", "validate")
    assert done.rc == 3 and "--yes" in done.err, (done.rc, done.err)
    assert modes(host) == {OFF}


def test_on_by_a_restart_goes_to_validate_first(host):
    """`on` has another command line: the processes that would answer have compared nothing yet."""
    clean(host)
    host.configure(modes={"on": {"mem_fraction_static": 0.9}})
    before = host.engine("InvocationID")
    done = switch(host, "on")
    assert done.rc == 1 and "kdtreectl mode on" in done.err, (done.rc, done.err)
    assert modes(host) == {VALIDATE} and host.engine("InvocationID") != before
    argv = host.command_line()
    assert argv[argv.index("--mem-fraction-static") + 1] == "0.9"
    assert host.facts("mode")["mode"] == "validate"
    host.wait_ranks("enough compares", lambda rank: rank["compares"] >= 30)
    before = host.engine("InvocationID", "MainPID")
    done = switch(host, "on")
    assert done.rc == 0, done.err
    assert modes(host) == {ON} and host.engine("InvocationID", "MainPID") == before


def test_on_again_in_other_processes_asks_again(host):
    clean(host)
    assert switch(host, "on").rc == 0
    host.run(["systemctl", "restart", UNIT]).check()  # comes up in on, as it was proven
    host.wait_ranks("every rank is back", lambda rank: rank["patch_state"] == 1 and rank["mode"] == ON, 40)
    assert switch(host, "on").rc == 0  # nothing to do
    host.configure(kernel={"defrag_sort": False}, validate={"min_compares": 10 ** 9})  # another environment: a restart
    done = switch(host, "on")
    assert done.rc == 3 and "insufficient" in done.err, done.err
    assert modes(host) == {ON}
    done = host.ctl("deploy", "--yes", "--accept-engine")
    assert done.rc == 0 and "then kdtreectl mode on" in done.err, done.err
    assert modes(host) == {VALIDATE}
    assert switch(host, "on").rc == 3 and modes(host) == {VALIDATE}


def test_a_stopped_engine_stays_stopped(host):
    host.systemctl("stop", UNIT).check()
    for args in (["mode", "validate"], ["mode", "off", "--cold"], ["rollback"], ["uninstall"]):
        done = host.ctl(*args, "--yes")
        assert done.rc == 0 and "stays so" in done.err, (args, done.rc, done.err)
        assert host.engine("ActiveState") == "inactive", args
        assert ("KDTREE_VERIFY=validate" in host.engine("Environment").split()) == (args == ["mode", "validate"])
    host.systemctl("start", UNIT).check()
    host.wait_healthy()
    assert "KDTREE_VERIFY" not in host.environment()


def test_an_outage_is_announced_with_what_the_last_start_took(host):
    done = host.ctl("mode", "off", "--cold", "--yes")
    assert done.rc == 0 and "answers nobody meanwhile; the last start took" in done.err, done.err
    assert " elapsed, the last start took " in done.err, done.err  # beside the deadline, while it is waited for
