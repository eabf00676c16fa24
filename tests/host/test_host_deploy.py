# SPDX-License-Identifier: Apache-2.0
"""`plan` and `deploy` on a real systemd, from nothing."""

from __future__ import annotations

import json

from kdtree_host import RANKS, UNIT, UNIT_PATH, KdtreeHost

TOUCHED = ("/etc", "/opt", "/var/lib/kdtree")
DROP_IN = f"/etc/systemd/system/{UNIT}.d/60-kdtree.conf"


def deploy(host: KdtreeHost, *args: str):
    return host.ctl("deploy", "--yes", "--accept-engine", *args)


def test_plan_and_dry_run_show_the_change_and_make_none(plain):
    files, engine = plain.tree(*TOUCHED), plain.engine("InvocationID", "ExecStart")
    plan = plain.ctl("plan", "--accept-engine").check()
    assert DROP_IN in plan.out and "KDTREE_VERIFY=off" in plan.out and UNIT in plan.out
    assert json.loads(plain.ctl("plan", "--accept-engine", "--json").check().out)
    dry = deploy(plain, "--dry-run").check()
    assert DROP_IN in dry.out
    assert plain.tree(*TOUCHED) == files
    assert plain.engine("InvocationID", "ExecStart") == engine


def test_deploy_from_nothing(plain):
    unit_text, before, cmdline = plain.read(UNIT_PATH), plain.engine("InvocationID", "ExecStart"), plain.command_line()
    done = deploy(plain)
    assert done.rc == 0, done.err
    assert done.err.strip(), "a deploy shows progress"

    # What systemd itself says.
    now = plain.engine("ActiveState", "InvocationID", "DropInPaths", "NeedDaemonReload", "Environment", "FragmentPath")
    assert now["ActiveState"] == "active" and now["InvocationID"] != before["InvocationID"]
    assert now["DropInPaths"] == DROP_IN and now["NeedDaemonReload"] == "no" and now["FragmentPath"] == UNIT_PATH
    assert "KDTREE_VERIFY=off" in now["Environment"].split()
    assert plain.read(UNIT_PATH) == unit_text
    assert plain.command_line() == cmdline  # all modes share one command line here

    # What the engine's processes have.
    environment = plain.environment()
    current = plain.path("/opt/kdtree/current")
    assert current.is_symlink()
    release = current.readlink().name
    assert environment["KDTREE_LIB"].endswith("/lib/libkdtree_torch.so") and release in environment["KDTREE_LIB"]
    assert environment["PYTHONPATH"].split(":")[0].endswith(f"{release}/python")

    # What the ranks report, read by the patch's own reader.
    ranks = plain.ranks()
    assert sorted(ranks) == list(range(RANKS))
    assert {(rank["patch_state"], rank["mode"], rank["release_id"]) for rank in ranks.values()} == {(1, 0, release)}
    assert {rank["sort_state"] for rank in ranks.values()} <= {1, 2}

    # What is on the disk.
    manifest = json.loads(plain.read(f"/opt/kdtree/releases/{release}/manifest.json"))
    assert manifest["selftest"]["device"] if "selftest" in manifest else manifest["selftest_device"] == "cpu"
    assert plain.path(f"/opt/kdtree/releases/{release}/build.log").exists()
    for file in plain.path("/opt/kdtree").rglob("*"):
        assert file.is_symlink() or not file.stat().st_mode & 0o022, file
    assert plain.path("/var/lib/kdtree/state.json").exists()
    audit = plain.read("/var/lib/kdtree/audit.jsonl").splitlines()
    assert json.loads(audit[-1])["verb"] == "deploy"
    assert plain.systemctl("is-active", "kdtree-agent").out == "active\n"


def test_a_second_deploy_of_the_same_changes_nothing(host):
    files, engine = host.tree("/etc", "/opt"), host.engine("InvocationID")
    done = deploy(host)
    assert done.rc == 0, done.err
    assert host.tree("/etc", "/opt") == files
    assert host.engine("InvocationID") == engine


def test_it_comes_back_after_a_reboot(host):
    """`host` has just booted from what deploy left on the disk."""
    assert host.engine("NeedDaemonReload") == "no"
    assert {rank["mode"] for rank in host.ranks().values()} == {0}
    assert host.systemctl("is-active", "kdtree-agent").out == "active\n"
    assert host.ctl("status").rc == 0
    assert host.systemctl("is-system-running").out == "running\n", host.systemctl("--failed", "--no-pager").out


def test_deploy_straight_into_validate(plain):
    done = deploy(plain, "--mode", "validate")
    assert done.rc == 0, done.err
    assert plain.environment()["KDTREE_VERIFY"] == "validate"
    assert {rank["mode"] for rank in plain.ranks().values()} == {1}


def test_deploy_may_not_go_straight_to_on(plain):
    done = deploy(plain, "--mode", "on")
    assert done.rc == 3 and "compared" in done.err, done.err
    assert not plain.path("/opt/kdtree/current").exists()


def test_a_plan_hash_that_no_longer_holds_is_refused(plain):
    plan = json.loads(plain.ctl("plan", "--accept-engine", "--json").check().out)
    plain.configure(modes={"off": {"mem_fraction_static": 0.5}})
    done = deploy(plain, "--plan", plan["hash"])
    assert done.rc == 3, done.err
    assert not plain.path("/opt/kdtree/current").exists()
