# SPDX-License-Identifier: Apache-2.0
"""Usage errors, configuration errors, help and man page: exit status, one line, the right stream."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

DONE, BAD_ANSWER, USAGE, REFUSED = 0, 1, 2, 3
VERBS = ["doctor", "plan", "deploy", "mode", "verdict", "status", "rollback", "history", "selftest", "bench", "uninstall", "recover"]
NEEDS_CONFIGURATION = [["verdict"], ["status"], ["mode"], ["mode", "validate", "--dry-run"], ["plan"], ["deploy", "--dry-run"]]
CONFIGURATION = {"engine": {"unit": "sglang.service", "python": "/usr/bin/python3",
                            "health_url": "http://127.0.0.1:1/health", "ranks": 2}}


def configure(root: Path, value: object = CONFIGURATION) -> None:
    (root / "etc/kdtree").mkdir(parents=True, exist_ok=True)
    (root / "etc/kdtree/kdtree.json").write_text(value if isinstance(value, str) else json.dumps(value))


def one_line(done, code: int, *words: str) -> None:
    """`done` failed with `code` and said one line on stderr that holds `words`, nothing on stdout."""
    assert done.rc == code, done
    assert done.out == "" and done.err.count("\n") == 1 and done.err.startswith("kdtreectl: "), done
    assert all(word in done.err for word in words), done


@pytest.mark.parametrize("args, words", [
    ([], ["which verb", "--help"]),
    (["deplyo"], ["'deplyo'", "deploy"]),
    (["--ja"], ["--help"]),
    (["deploy", "--ja"], ["deploy", "--ja", "kdtreectl deploy --help"]),
    (["mode", "onn"], ["onn", "validate"]),
    (["mode", "on", "off"], ["off"]),
    (["mode", "on", "--timeout", "0"], ["--timeout"]),
    (["mode", "on", "--cold"], ["--cold", "kdtreectl mode off --cold"]),
    (["history", "--last", "-3"], ["--last"]),
    (["selftest", "--device", "tpu"], ["tpu", "cuda"]),
])
def test_a_wrong_command_line(ctl, args, words):
    one_line(ctl(*args), USAGE, *words)


def test_a_mode_that_is_none(ctl):
    assert ctl("mode", "onn").err == "kdtreectl: mode: 'onn' is none of off, validate, on; kdtreectl mode --help\n"
    assert ctl("deploy", "--mode", "onn").err.startswith("kdtreectl: deploy: --mode: 'onn' is none of off, validate, on; ")


def test_help_of_mode_says_what_each_costs(ctl):
    text = " ".join(ctl("mode", "--help").out.split())
    for words in ("captures both kernels in its CUDA graphs", "a step takes longer than in off", "grows with the length of the context"):
        assert words in text


def test_a_root_that_does_not_exist(ctl):
    one_line(ctl("--root", "/does/not/exist", "history", under_root=False), USAGE, "/does/not/exist")


def test_help_is_for_stdout(ctl):
    done = ctl("--help")
    assert done.rc == DONE and done.err == ""
    listed = re.findall(r"^  ([a-z]+) {3,}", done.out, re.M)
    assert [verb for verb in listed if verb != "heatmap"] == VERBS
    for code in "0123456":
        assert re.search(rf"^  {code}  ", done.out, re.M), code


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(ctl, verb):
    done = ctl(verb, "--help")
    assert done.rc == DONE and done.err == "" and f"kdtreectl {verb}" in done.out


def test_version(ctl):
    done = ctl("--version")
    assert done.rc == DONE and re.fullmatch(r"kdtreectl \d+\.\d+\.\d+\n", done.out)


def test_the_man_page_is_whole_and_says_what_help_says(ctl, tmp_path):
    page = ctl("--man")
    assert page.rc == DONE
    (tmp_path / "kdtreectl.8").write_text(page.out)
    shown = subprocess.run(["man", "--warnings", "-l", str(tmp_path / "kdtreectl.8")], capture_output=True, text=True,
                           env={"PATH": "/usr/bin:/bin", "MANWIDTH": "200", "LC_ALL": "C.UTF-8"})
    assert shown.returncode == 0 and shown.stderr == ""
    text = re.sub(".\b", "", shown.stdout).replace("\N{HYPHEN}", "-").replace("\N{MINUS SIGN}", "-")
    for verb in VERBS:
        assert f"kdtreectl {verb} [OPTIONS]" in text, verb
        options = set(re.findall(r"^  (?:-\w,)?(--[a-z-]+)", ctl(verb, "--help").out, re.M)) - {"--help"}
        assert all(option in text for option in options), verb
    for section in ("EXIT STATUS", "CONFIGURATION", "FILES", "EXAMPLES"):
        assert re.search(rf"^{section}$", text, re.M), section


@pytest.mark.parametrize("args", NEEDS_CONFIGURATION)
def test_no_configuration_says_where_it_goes(ctl, args):
    one_line(ctl(*args), USAGE, "/etc/kdtree/kdtree.json")


@pytest.mark.parametrize("args", NEEDS_CONFIGURATION)
def test_an_unknown_key_is_named_with_its_path(ctl, root, args):
    configure(root, {"engine": {**CONFIGURATION["engine"], "helth_url": "http://127.0.0.1/"}})
    one_line(ctl(*args), USAGE, "engine.helth_url", "engine.health_url")


def test_nothing_is_deployed(ctl, root):
    configure(root)
    for args in (["verdict"], ["mode"]):
        one_line(ctl(*args), REFUSED, "kdtreectl deploy")


def test_another_root_has_no_systemd(ctl, root):
    configure(root)
    for args in (["status"], ["plan"], ["deploy", "--yes"]):
        done = ctl(*args)
        assert done.rc == REFUSED and "systemd" in done.err, done


def test_doctor_without_a_configuration(ctl):
    done = ctl("doctor")
    assert done.rc == BAD_ANSWER and "/etc/kdtree/kdtree.json" in done.out and done.err == ""
    facts = json.loads(ctl("doctor", "--json").out)
    assert facts["result"] == "failure"
    assert [check["level"] for check in facts["checks"]] == ["failure"]
    assert facts["checks"][0]["next"]


def test_history_of_a_host_without_one(ctl):
    done = ctl("history")
    assert done.rc == DONE and done.out.strip()
    assert json.loads(ctl("history", "--json").out) == []


def deployed(root: Path, *, trial: bool = False, history: list | None = None, **more: object) -> None:
    """A host that has release r1 in mode off, as far as its files say; `more`: keys of state.json."""
    configure(root)
    off = {"release": "r1", "mode": "off", "cold": False}
    (root / "var/lib/kdtree").mkdir(parents=True)
    (root / "var/lib/kdtree/state.json").write_text(json.dumps(
        {"format": 1, "current": off, "good": off, "before": None, "trial": trial, "accepted_engines": {}, "unit_before": None,
         "managed": {}, "history": history or [], **more}))


def entry(**more: object) -> dict:
    return {"time": "2026-01-01T00:00:00Z", "verb": "deploy", "from": "none", "to": "r1 off", "result": "rolled back",
            "reason": "", "plan": "0" * 64, "user": "root", "forced": False, **more}


def test_what_an_engine_said_moves_no_cursor(ctl, root):
    """Titles, colours, backspaces, 8-bit controls: an engine's last words come from whoever wrote its model."""
    hostile = "\x1b]0;title\x07\x1b[2J\x1b[8mhidden\r\b\u009b31mred\x7f"
    deployed(root, history=[entry(reason=hostile, user=hostile)])
    done = ctl("history")
    assert done.rc == DONE and "hidden" in done.out and "red" in done.out
    assert not [c for c in done.out + done.err if c != "\n" and (ord(c) < 0x20 or 0x7f <= ord(c) < 0xa0)]


def test_history_in_full_shows_what_was_kept(ctl, root):
    kept = "/var/lib/kdtree/evidence/20260101T000000Z-deploy-1.txt"
    deployed(root, history=[entry(reason="never healthy", evidence=kept), entry(evidence="/etc/passwd")])
    (root / "var/lib/kdtree/evidence").mkdir()
    (root / kept[1:]).write_text("deploy: none -> r1 off\nlast lines of sglang.service:\n  CUDA out of memory\n")
    done = ctl("history", "--full")
    assert done.rc == DONE and "never healthy" in done.out and "CUDA out of memory" in done.out
    assert "root:" not in done.out and "/etc/passwd is not in" in done.err


def test_mode_says_that_a_change_is_on_trial(ctl, root):
    deployed(root, trial=True)
    done = ctl("mode")
    assert done.rc == BAD_ANSWER and done.out == "off  (0 of 2 ranks, on trial: not past its gate)\n", done
    assert json.loads(ctl("mode", "--json").out)["trial"] is True


@pytest.mark.parametrize("broken", [None, "{", '{"engine": {}}'])
def test_without_a_configuration_the_ways_back_go_by_the_last_one(ctl, root, broken):
    deployed(root, configuration=CONFIGURATION)
    file = root / "etc/kdtree/kdtree.json"
    file.unlink() if broken is None else file.write_text(broken)
    done = ctl("mode")
    assert done.out == "off  (0 of 2 ranks)\n", done
    assert done.err.count("\n") == 1 and "kdtree.json" in done.err and "state.json has kept" in done.err
    for args in (["status"], ["rollback", "--yes"], ["mode", "off", "--cold", "--yes"], ["mode", "off"], ["uninstall", "--yes"], ["plan", "rollback"],
                 ["plan", "uninstall"], ["plan", "mode", "off", "--cold"]):
        done = ctl(*args)
        assert done.rc == REFUSED and "no systemd" in done.err and "state.json has kept" in done.err, done
    for args in (["verdict"], ["mode", "validate"], ["mode", "on", "--force"], ["deploy", "--yes"], ["plan"], ["plan", "mode", "on"]):
        one_line(ctl(*args), USAGE, "kdtree.json")


@pytest.mark.parametrize("args", [["mode", "off", "--force"], ["mode", "validate", "--force"], ["mode", "--force"],
                                  ["mode", "--cold"], ["mode", "validate", "--cold"]])
def test_force_and_cold_where_they_mean_nothing(ctl, root, args):
    deployed(root)
    one_line(ctl(*args), USAGE, args[-1])


def test_a_damaged_state_is_never_taken_for_an_empty_one(ctl, root):
    configure(root)
    (root / "var/lib/kdtree").mkdir(parents=True)
    for text in ("{", "[]", '{"format": 99}'):
        (root / "var/lib/kdtree/state.json").write_text(text)
        one_line(ctl("history"), REFUSED, "state.json")


def test_recover_where_nothing_was_cut_off(ctl):
    for args in (["recover"], ["recover", "--boot"], ["recover", "--dry-run"]):
        done = ctl(*args)
        assert done.rc == DONE and done.out.strip(), done
    assert ctl("recover", "--unattended").out == ""


def test_a_closed_stdout_is_no_crash(program, root):
    job = subprocess.run(f"'{program}' --root '{root}' --help | true; exit ${{PIPESTATUS[0]}}", shell=True,
                         executable="/bin/bash", capture_output=True, text=True)
    assert job.returncode == DONE and job.stderr == ""
