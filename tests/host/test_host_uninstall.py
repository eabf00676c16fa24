# SPDX-License-Identifier: Apache-2.0
"""`rollback` and `uninstall`: what they give back."""

from __future__ import annotations

from kdtree_host import UNIT

# What systemd makes anew at each start or counts up.
RUNTIME = ("Timestamp", "InvocationID", "PID", "Usage", "USec", "Memory", "CPU", "IO", "IP", "Tasks", "start_time", "NRestarts", "JobId")


def unit_as_configured(host) -> dict[str, str]:
    values = host.show(UNIT)
    values["ExecStart"] = values["ExecStart"].split(" ; ignore_errors=")[0]
    for key in ("After", "Before", "Requires", "Wants", "WantedBy"):  # systemd lists them in the order of its hash table
        values[key] = " ".join(sorted(values.get(key, "").split()))
    return {key: value for key, value in values.items()
            if not any(word in key for word in RUNTIME) and key not in ("ExecStartEx", "ControlGroupId")}


def test_uninstall_restores_the_host(plain):
    folders = ("/etc", "/opt", "/var/lib", "/usr/lib/systemd", "/usr/lib/tmpfiles.d")
    files, unit = plain.tree(*folders), unit_as_configured(plain)
    assert plain.ctl("deploy", "--yes", "--accept-engine").rc == 0
    assert plain.ctl("mode", "validate", "--yes").rc == 0
    before = plain.engine("InvocationID")
    done = plain.ctl("uninstall", "--yes")
    assert done.rc == 0, done.err

    assert plain.engine("InvocationID") != before and plain.http("http://127.0.0.1:30000/health")[0] == 200
    assert unit_as_configured(plain) == unit
    left = {path: value for path, value in plain.tree(*folders).items() if files.get(path) != value}
    gone = set(files) - set(plain.tree(*folders))
    # The record of what was done stays, and so does systemd's own bookkeeping; nothing else.
    own = ("/var/lib/kdtree", "/var/lib/systemd", "/var/lib/private", "/var/lib/sglang")
    assert [path for path in left if not path.startswith(own)] == [] and gone == set(), (left.keys(), gone)
    assert not plain.path("/opt/kdtree/releases").exists()
    assert plain.systemctl("is-active", "kdtree-agent").out == "inactive\n"
    assert plain.path("/run/kdtree/stats").exists() is False or not list(plain.path("/run/kdtree/stats").glob("*.stats"))
    assert plain.ctl("deploy", "--yes", "--accept-engine").rc == 0  # and it can come back


def test_uninstall_can_keep_the_releases(host):
    release = host.path("/opt/kdtree/current").readlink().name
    assert host.ctl("uninstall", "--yes", "--keep-releases").rc == 0
    assert host.path(f"/opt/kdtree/releases/{release}/manifest.json").exists()
    assert not host.path("/opt/kdtree/current").is_symlink()
    assert "KDTREE_VERIFY" not in host.environment()


def test_rollback_goes_to_the_last_good_state(host):
    assert host.ctl("mode", "validate", "--yes").rc == 0
    done = host.ctl("rollback", "--yes")
    assert done.rc == 0, done.err
    assert {rank["mode"] for rank in host.ranks().values()} == {0}
    assert "KDTREE_VERIFY=off" in host.engine("Environment").split()


def test_rollback_to_on_stops_at_validate(host):
    """`on` needs a verdict of the process that will answer; a rollback has none."""
    assert host.ctl("mode", "on", "--force", "--yes").rc == 0
    assert host.ctl("mode", "off", "--yes").rc == 0
    done = host.ctl("rollback", "--yes")
    assert done.rc == 0 and "kdtreectl mode on" in done.out + done.err, done.err
    assert {rank["mode"] for rank in host.ranks().values()} == {1}
    assert "KDTREE_VERIFY=validate" in host.engine("Environment").split()


def test_rollback_of_the_first_deploy_is_a_host_without_kdtree(host):
    done = host.ctl("rollback", "--yes")
    assert done.rc in (0, 3), done.err
    if done.rc == 0:
        assert "KDTREE_VERIFY" not in host.environment() and host.engine("DropInPaths") == ""


def test_another_unit_in_the_configuration_is_no_way_to_lose_one(host):
    """The drop-in of the unit that kdtree is under would stay behind for ever."""
    host.write("/etc/systemd/system/other.service", host.read(f"/etc/systemd/system/{UNIT}"))
    host.systemctl("daemon-reload").check()
    host.configure(engine={"unit": "other.service"})
    before = host.tree("/etc/systemd", "/opt")
    for args in (["deploy", "--accept-engine"], ["mode", "validate"], ["uninstall"]):
        done = host.ctl(*args, "--yes")
        assert done.rc == 3 and f"set engine.unit back to {UNIT}" in done.err, done.err
    status = host.ctl("status")
    assert status.rc == 1 and f"kdtree is under {UNIT}" in status.out
    assert host.tree("/etc/systemd", "/opt") == before
    host.configure()
    assert host.ctl("uninstall", "--yes").rc == 0


def test_the_engines_folder_stays_the_engines(host):
    """An upgrade of the package runs systemd-tmpfiles under a running engine."""
    owner = host.path("/run/kdtree/stats").stat().st_uid
    assert owner != 0
    host.run(["systemd-tmpfiles", "--create"])
    assert host.path("/run/kdtree/stats").stat().st_uid == owner
