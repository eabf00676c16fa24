# SPDX-License-Identifier: Apache-2.0
"""An operator in trouble: the configuration is lost or broken, the drop-in was edited, somebody else is at work."""

from __future__ import annotations

import pytest

from kdtree_host import RANKS, UNIT_PATH, KdtreeHost

CONFIGURATION = "/etc/kdtree/kdtree.json"
DROP_IN = f"{UNIT_PATH}.d/60-kdtree.conf"
USAGE = 2


def lose(host: KdtreeHost, text: str | None) -> None:
    if text is None:
        host.path(CONFIGURATION).unlink()
    else:
        host.write(CONFIGURATION, text)


def goes_on(done) -> None:
    """It worked, and said in one line what it went by."""
    assert done.rc == 0, (done.rc, done.out, done.err)
    warnings = [line for line in done.err.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == 1 and CONFIGURATION in warnings[0] and "state.json has kept" in warnings[0], done.err


@pytest.mark.parametrize("text", [None, "{"], ids=["lost", "broken"])
def test_every_way_back_works_without_a_configuration(host, text):
    assert host.ctl("mode", "validate", "--yes").rc == 0
    lose(host, text)
    goes_on(host.ctl("status"))
    goes_on(host.ctl("mode"))
    for args in (["mode", "on", "--force", "--yes"], ["mode", "validate", "--yes"], ["deploy", "--yes"], ["verdict"]):
        done = host.ctl(*args)
        assert done.rc == USAGE and CONFIGURATION in done.err, (args, done.err)
    assert "{" in host.ctl("plan", "rollback", "--json").out

    goes_on(host.ctl("rollback", "--yes"))
    assert {rank["mode"] for rank in host.ranks().values()} == {0} and len(host.ranks()) == RANKS
    goes_on(host.ctl("mode", "off", "--cold", "--yes"))
    assert "KDTREE_VERIFY" not in host.environment()
    goes_on(host.ctl("mode", "off", "--yes"))
    assert len(host.ranks()) == RANKS
    goes_on(host.ctl("uninstall", "--yes"))
    assert not host.path(DROP_IN).exists() and host.http("http://127.0.0.1:30000/health")[0] == 200
    assert "KDTREE_VERIFY" not in host.environment()


def test_a_first_deploy_that_was_cut_off_is_undone_without_a_configuration(plain):
    plain.fault("slow_start:30@KDTREE_VERIFY")
    before = plain.engine("InvocationID")
    job = plain.start(["kdtreectl", "deploy", "--yes", "--accept-engine"])
    plain.wait("the engine is being restarted", lambda: plain.path(DROP_IN).exists() and plain.engine("InvocationID") not in ("", before), 90)
    at_work = plain.facts("status")["at_work"]
    assert at_work and at_work.startswith("kdtreectl deploy (pid "), at_work
    assert "at work: kdtreectl deploy (pid " in plain.ctl("status").out
    plain.run(["kill", "-KILL", *plain.run(["pgrep", "-x", "kdtreectl"]).check().out.split()]).check()
    job.communicate()
    plain.fault()
    lose(plain, None)
    assert plain.facts("status")["at_work"] is None
    goes_on(plain.ctl("recover"))
    assert not plain.path(DROP_IN).exists() and "KDTREE_VERIFY" not in plain.environment()


def test_an_edited_drop_in_is_written_again_without_a_restart(host):
    ours = host.read(DROP_IN)
    host.write(DROP_IN, ours + "# looked at this, Tuesday\n")
    host.systemctl("daemon-reload").check()
    engine = host.engine("InvocationID", "MainPID")
    status = host.ctl("status")
    assert status.rc == 1 and "changed by somebody else" in status.out and "kdtreectl plan mode off says first" in status.out
    done = host.ctl("mode", "off", "--yes")
    assert done.rc == 0 and f"{DROP_IN} was changed by somebody else: it is written again, without a restart" in done.err, done.err
    assert host.read(DROP_IN) == ours and host.engine("InvocationID", "MainPID") == engine
    assert host.ctl("status").rc == 0


def test_plan_shows_what_systemd_will_have(host):
    """Before: systemd's own answer. After: systemd's own answer once the plan was carried out."""
    host.configure(modes={"validate": {"mem_fraction_static": 0.9}})
    plan = host.facts("plan", "mode", "validate")
    before, after = plan["plan"]["unit"]["before"], plan["plan"]["unit"]["after"]
    shown = host.ctl("plan", "mode", "validate").check().out
    for line in ("- Environment=KDTREE_VERIFY=off", "+ Environment=KDTREE_VERIFY=validate", "- ExecStart=--mem-fraction-static 0.94",
                 "+ ExecStart=--mem-fraction-static 0.9"):
        assert f"    {line}\n" in shown, shown
    assert host.ctl("mode", "validate", "--yes", "--plan", plan["hash"]).rc == 0
    assert before != after
    assert host.facts("plan", "mode", "off")["plan"]["unit"]["before"] == after


def test_a_unit_that_changed_since_the_plan_is_refused(host):
    plan = host.facts("plan", "mode", "validate")
    host.write(f"{UNIT_PATH}.d/50-more.conf", "[Service]\nEnvironment=MORE=1\n")
    host.systemctl("daemon-reload").check()
    done = host.ctl("mode", "validate", "--yes", "--plan", plan["hash"])
    assert done.rc == 3 and "the host has changed since" in done.err, done.err


def test_uninstall_of_nothing_asks_nothing_and_records_nothing(plain):
    done = plain.ctl("uninstall")
    assert done.rc == 0 and done.out == "nothing to do: nothing of kdtree is deployed\n", (done.out, done.err)
    assert plain.facts("history") == []


def test_doctor_says_what_a_deploy_would_refuse(plain):
    plain.configure(engine={"ranks": 4}, agent={"listen": "0.0.0.0:9817"})
    plain.run(["mkdir", "-p", "/opt/kdtree/releases"]).check()
    plain.run(["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", "/opt/kdtree/releases"]).check()
    doctor = plain.ctl("doctor").out
    assert "MiB free, a build needs 64" in doctor and "0.0.0.0:9817 is beyond loopback, without TLS" in doctor
    assert "engine.ranks is 4, but the engine's command line makes 8" in doctor, doctor
    plain.run(["umount", "/opt/kdtree/releases"]).check()
    done = plain.ctl("deploy", "--yes", "--accept-engine")
    assert done.rc == 3 and "engine.ranks is 4, but" in done.err, done.err
    plain.configure(engine={"python": "/usr/bin/python3"})
    assert "/usr/bin/python3 has no sglang package" in plain.ctl("doctor").out
    done = plain.ctl("plan", user="sglang")
    assert done.rc == 3 and "plan has to be run by root" in done.err and "sudo kdtreectl plan" in done.err
    plain.configure(engine={"unit": "whole.service", "user": "nobody-here", "command": ["/opt/test-engine/light/bin/python3", "-m", "sglang.launch_server"]})
    assert "there is no user nobody-here" in plain.ctl("doctor").out
    for verb in (["plan"], ["deploy", "--yes", "--accept-engine"]):
        done = plain.ctl(*verb)
        assert done.rc == 3 and "there is no user nobody-here on this host; make that user, or name another as engine.user" in done.err, done.err
