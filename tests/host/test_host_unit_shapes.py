# SPDX-License-Identifier: Apache-2.0
"""Engine units as operators write them: what the running engine gets after deploy, and that uninstall gives it all back.

Compared is what the kernel holds of the running process (its command line and environment), not texts.
"""

from __future__ import annotations

import pytest

from kdtree_host import PORT, PYTHON, UNIT_PATH, KdtreeHost, engine_unit

LAUNCH = f"{PYTHON} -m sglang.launch_server --model-path /models/kimi-k2.6 --tp-size 1 --port {PORT}"

# name: command, more lines for [Service], expected change of the command line by modes.off.mem_fraction_static = 0.9
SHAPES = {
    "two_words": (f"{LAUNCH} --mem-fraction-static 0.94 --attention-backend triton", "",
                  lambda argv: [*argv[:argv.index("--mem-fraction-static") + 1], "0.9", *argv[argv.index("--mem-fraction-static") + 2:]]),
    "one_word": (f"{LAUNCH} --mem-fraction-static=0.94 --attention-backend triton", "",
                 lambda argv: ["--mem-fraction-static=0.9" if word.startswith("--mem-fraction-static") else word for word in argv]),
    "not_at_all": (f"{LAUNCH} --attention-backend triton", "", lambda argv: [*argv, "--mem-fraction-static", "0.9"]),
    "continued_lines": (LAUNCH.replace(" --", " \\\n    --") + " \\\n# a comment inside\n    --mem-fraction-static 0.94", "",
                        lambda argv: [*argv[:-1], "0.9"]),
    "quotes_percent_dollar": (f"""{LAUNCH} --mem-fraction-static 0.94 --served-model-name "kimi 100%% $$HOME ${{NAME}} 'x'" --api-key 'a"b\\x41' """
                              "--tool-call-parser %n:%%n", 'Environment="NAME=a b  c"',
                              lambda argv: [*argv[:argv.index("--mem-fraction-static") + 1], "0.9", *argv[argv.index("--mem-fraction-static") + 2:]]),
    "word_splitting_variable": (f"{LAUNCH} --mem-fraction-static 0.94 $EXTRA", 'Environment="EXTRA=--log-level info"',
                                lambda argv: [*argv[:argv.index("--mem-fraction-static") + 1], "0.9", *argv[argv.index("--mem-fraction-static") + 2:]]),
}


@pytest.fixture(scope="module")
def machine(package_layer):
    with KdtreeHost([package_layer]) as booted:
        booted.configure(engine={"ranks": 1}, modes={"off": {"mem_fraction_static": 0.9}})
        yield booted


def roundtrip(host: KdtreeHost, text: str, extra_files: dict[str, str] = {}):
    """Installs the unit, deploys, uninstalls. Returns (command line, environment) plain, deployed, and plain again."""
    for path, content in extra_files.items():
        host.write(path, content)
    seen = []
    host.install_engine(text)
    seen.append((host.command_line(), host.environment()))
    for verb in (["deploy", "--yes", "--accept-engine"], ["uninstall", "--yes"]):
        done = host.ctl(*verb)
        assert done.rc == 0, done.err
        assert host.engine("NeedDaemonReload") == "no"
        seen.append((host.command_line(), host.environment()))
    assert host.read(UNIT_PATH) == text
    return seen


def stable(environment: dict[str, str]) -> dict[str, str]:
    """Without what systemd makes anew at each start."""
    return {key: value for key, value in environment.items() if key not in ("INVOCATION_ID", "JOURNAL_STREAM", "SYSTEMD_EXEC_PID")}


@pytest.mark.parametrize("shape", SHAPES)
def test_command_line(machine, shape):
    command, service, expected = SHAPES[shape]
    (plain, environment), (deployed, changed), (restored, after) = roundtrip(machine, engine_unit(command, service=service))
    assert deployed == expected(plain), (deployed, changed, machine.systemctl("cat", "sglang.service").out)
    assert restored == plain
    assert stable(after) == stable(environment)


def test_flags_of_a_mode_are_added_and_removed(machine):
    machine.configure(engine={"ranks": 1}, modes={"off": {"add_flags": ["--disable-cuda-graph", "--max-running-requests", "2"],
                                                          "remove_flags": ["--log-level", "--enable-metrics"]}})
    try:
        seen = roundtrip(machine, engine_unit(f"{LAUNCH} --enable-metrics --log-level info --max-running-requests 4"))
    finally:
        machine.configure(engine={"ranks": 1}, modes={"off": {"mem_fraction_static": 0.9}})
    (plain, _), (deployed, _), (restored, _) = seen
    assert "--enable-metrics" not in deployed and "--log-level" not in deployed and "info" not in deployed
    assert deployed.count("--max-running-requests") == 1 and deployed[deployed.index("--max-running-requests") + 1] == "2"
    assert "--disable-cuda-graph" in deployed
    assert restored == plain


def test_pythonpath_is_kept_behind_ours_and_its_sitecustomize_still_runs(machine):
    theirs = "import os\nif os.environ.get('KDTREE_VERIFY'):\n    open(f'/var/lib/sglang/ran.{os.getpid()}', 'w').close()\n"
    seen = roundtrip(machine, engine_unit(LAUNCH, service="Environment=PYTHONPATH=/opt/theirs:/opt/more"),
                     {"/opt/theirs/sitecustomize.py": theirs})
    (_, plain), (_, deployed), (_, restored) = seen
    assert plain["PYTHONPATH"] == restored["PYTHONPATH"] == "/opt/theirs:/opt/more"
    assert deployed["PYTHONPATH"].split(":")[1:] == ["/opt/theirs", "/opt/more"]
    assert list(machine.path("/var/lib/sglang").glob("ran.*"))


def test_pythonpath_of_an_environment_file_is_not_lost(machine):
    """EnvironmentFile= beats Environment=, so a drop-in that only sets PYTHONPATH would be without effect: what deploy
    says it did has to be what the engine has, or it has to refuse."""
    text = engine_unit(LAUNCH, service="EnvironmentFile=/etc/default/sglang")
    machine.write("/etc/default/sglang", "PYTHONPATH=/opt/from-file\nHF_HOME=/models\n")
    machine.install_engine(text)
    done = machine.ctl("deploy", "--yes", "--accept-engine")
    if done.rc == 3:
        assert "/etc/default/sglang" in done.err and "PYTHONPATH" in done.err
        return
    assert done.rc == 0, done.err
    environment = machine.environment()
    assert environment["PYTHONPATH"].split(":")[1:] == ["/opt/from-file"] and environment["HF_HOME"] == "/models"
    assert machine.ctl("uninstall", "--yes").rc == 0
    assert machine.environment()["PYTHONPATH"] == "/opt/from-file"


def test_an_operators_own_drop_in_is_what_counts(machine):
    """A drop-in that replaces ExecStart is the effective command; ours goes on top of it and comes off again."""
    path = f"{UNIT_PATH}.d/20-operator.conf"
    machine.write(path, f"[Service]\nExecStart=\nExecStart={LAUNCH} --mem-fraction-static 0.8\nEnvironment=OPERATOR=1\n")
    try:
        (plain, _), (deployed, environment), (restored, _) = roundtrip(machine, engine_unit(f"{LAUNCH} --mem-fraction-static 0.94"))
        assert plain[-1] == "0.8" and deployed == [*plain[:-1], "0.9"] and restored == plain
        assert environment["OPERATOR"] == "1"
        assert machine.engine("DropInPaths") == path
    finally:
        machine.path(path).unlink()


def test_a_unit_that_kdtree_writes_whole(machine):
    machine.systemctl("stop", "sglang.service")
    machine.path(UNIT_PATH).unlink(missing_ok=True)
    machine.systemctl("daemon-reload").check()
    command = LAUNCH.split() + ["--served-model-name", "a b %n $HOME"]
    machine.configure(engine={"ranks": 1, "command": command, "user": "sglang", "environment": {"HF_HOME": "/mo dels"}})
    try:
        done = machine.ctl("deploy", "--yes", "--accept-engine")
        assert done.rc == 0, done.err
        assert machine.command_line() == command
        assert machine.environment()["HF_HOME"] == "/mo dels" and machine.environment()["USER"] == "sglang"
        assert sorted(machine.wait("the rank reports", machine.ranks)) == [0]
        done = machine.ctl("uninstall", "--yes")
        assert done.rc == 0, done.err
        assert "KDTREE_VERIFY" not in (machine.environment() if machine.engine("MainPID") != "0" else {})
    finally:
        machine.configure(engine={"ranks": 1}, modes={"off": {"mem_fraction_static": 0.9}})


def test_a_unit_in_a_sandbox_and_another_slice(machine):
    """User=, ProtectSystem=strict, PrivateTmp=, ReadWritePaths=, Slice=: the ranks report all the same."""
    sandbox = ("ProtectSystem=strict\nPrivateTmp=yes\nProtectHome=yes\nReadWritePaths=/var/lib/sglang\nNoNewPrivileges=yes\n"
               "Slice=engines.slice\nGroup=sglang\nUMask=0077")
    machine.install_engine(engine_unit(f"{LAUNCH} --mem-fraction-static 0.94", service=sandbox))
    done = machine.ctl("deploy", "--yes", "--accept-engine")
    assert done.rc == 0, done.err
    assert machine.engine("ControlGroup").startswith("/engines.slice/")
    assert sorted(machine.wait("the rank reports", machine.ranks)) == [0]
    assert machine.ctl("status").rc == 0
    assert machine.ctl("uninstall", "--yes").rc == 0
    assert not any(name.startswith("KDTREE_") for name in machine.environment())


def test_variables_set_by_hand_are_taken_over_and_given_back(machine):
    machine.install_engine(engine_unit(f"{LAUNCH} --mem-fraction-static 0.94", service="Environment=KDTREE_VERIFY=on"))
    done = machine.ctl("deploy", "--yes", "--accept-engine")
    assert done.rc == 0 and "KDTREE_ variables by hand" in done.err, done.err
    assert machine.environment()["KDTREE_VERIFY"] == "off"
    assert machine.ctl("uninstall", "--yes").rc == 0
    assert machine.environment()["KDTREE_VERIFY"] == "on"
