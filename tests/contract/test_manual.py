# SPDX-License-Identifier: Apache-2.0
"""kdtreectl(8) says all keys of the configuration, and none that isn't one; README and man page name the same exit codes and verbs."""

from __future__ import annotations

import functools
import json
import re
import subprocess
from pathlib import Path

import pytest

from contract_files import ROOT, output, program

CONFIG = {"engine": {"unit": "sglang.service", "python": "/opt/sglang/bin/python3", "health_url": "http://127.0.0.1:30000/health",
                     "ranks": 8}}
# A value that each kind of key takes; what is not listed takes a text.
VALUES = {"engine.ranks": 8, "engine.command": ["/bin/true"], "engine.environment": {}, "kernel.archs": ["120"],
          "kernel.device": "cpu", "kernel.cuda_home": "/opt/cuda", "kernel.nsplit": "4", "kernel.defrag_sort": True,
          "mem_fraction_static": 0.5, "add_flags": ["--x"], "remove_flags": ["--x"], "deadlines": 60,
          "validate.min_compares": 1, "validate": 1.5, "gate.golden.url": "http://x", "gate.golden.request": {},
          "gate.gpu_free_mib": 1, "agent.listen": "127.0.0.1:1", "agent.web_config": "/etc/kdtree/web.yml", "moe.ep_size": 8}


@functools.cache
def man_page() -> str:
    return output(program("kdtreectl"), "--man").replace("\\-", "-").replace("\\&", "")


def documented() -> set[str]:
    """Keys with their path, MODE standing for a mode."""
    part = man_page().split("All keys, and what they are")[1].split(".SH ")[0]
    return {key for line in re.findall(r"^\.TP\n\.B (.+)$", part, re.M) for key in line.split(", ")}


def in_source() -> set[str]:
    """The last part of every key that the configuration's reader asks for."""
    source = (ROOT / "agent" / "config" / "config.cpp").read_text()
    asked = re.findall(r'(?:object\.(?:text|texts|integer|number|boolean|find|need)|\bseconds)\("(\w+)"', source)
    listed = re.findall(r'for \(const char\* key : \{([^}]*)\}\) object\.need', source)
    names = set(asked) | {name for group in listed for name in re.findall(r'"(\w+)"', group)}
    return names - {"engine", "kernel", "modes", "deadlines", "gate", "golden", "validate", "agent", "moe"}


def test_all_keys_are_in_the_man_page() -> None:
    assert {key.rpartition(".")[2] for key in documented()} == in_source()


def configured(key: str, value: object) -> dict:
    """The smallest configuration, and one key more."""
    config = json.loads(json.dumps(CONFIG))
    if key.startswith(("engine.user", "engine.environment")):
        config["engine"]["command"] = ["/bin/true"]
    if key.startswith("gate.golden"):
        config["gate"] = {"golden": {"url": CONFIG["engine"]["health_url"], "request": {}, "expect": "x"}}
    *path, name = key.replace("MODE", "on").split(".")
    inner = config
    for part in path:
        inner = inner.setdefault(part, {})
    inner[name] = value
    return config


def complaint(config: dict, root: Path) -> str:
    """What kdtreectl says against it, "" = nothing."""
    file = root / "etc/kdtree/kdtree.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(config))
    done = subprocess.run([program("kdtreectl"), "--root", root, "plan"], capture_output=True, text=True, check=False)
    return done.stderr if f"{file}: " in done.stderr else ""


@pytest.mark.parametrize("key", sorted(documented()))
def test_a_documented_key_is_one(key: str, tmp_path: Path) -> None:
    name = key.rpartition(".")[2]
    value = next((VALUES[known] for known in (key, key.split(".")[0], name) if known in VALUES), None)
    value = CONFIG["engine"].get(name, "sglang") if value is None else value
    assert complaint(configured(key, value), tmp_path) == ""
    assert f"unknown key {key.replace('MODE', 'on')}x" in complaint(configured(key + "x", value), tmp_path)


def test_a_verb_says_what_it_says_and_not_what_the_program_says() -> None:
    verbs = man_page().split(".SH VERBS")[1].split(".SH MODES")[0]
    assert verbs.count(".SS ") > 8 and "Exit status:" not in verbs


def test_the_defaults_that_the_man_page_names_are_the_programs() -> None:
    header = (ROOT / "agent" / "config" / "config.h").read_text()
    for key, default in (("healthy_s", "1800"), ("stop_s", "300"), ("stable_s", "10"), ("drain_s", "30"), ("min_compares", "1000"), ("max_ulp", "4")):
        assert re.search(rf"\b{key}(?: = |\{{){default}\b", header), key
        assert re.search(rf"\.B \S*\.{key}\n.*; {default}$", man_page(), re.M), key
    assert 'listen = "127.0.0.1:9817"' in header and "mean_ulp = 0.5" in header


def test_the_exit_codes_of_the_runbook_are_the_programs() -> None:
    table = dict(re.findall(r"^\| (\d) \| (.+) \|$", (ROOT / "runbooks" / "deploy.md").read_text(), re.M))
    listed = re.findall(r"^  (\d)  (.+)$", output(program("kdtreectl"), "--help"), re.M)
    assert sorted(table) == sorted(code for code, _ in listed) == list("0123456")
