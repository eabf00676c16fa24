# SPDX-License-Identifier: Apache-2.0
"""A throw-away host that has kdtree's package, an engine unit and eight (fake) GPUs: what every verb is tested on."""

from __future__ import annotations

import json
import stat
import sys
import time
from pathlib import Path
from typing import Any, Mapping, Sequence

from machine import Bind, Completed, Machine
from package import REPOSITORY, add_fake_nvml, install

sys.path.insert(0, str(REPOSITORY / "sitecustomize"))
from kdtree_patch import stats_format  # noqa: E402,F401: for users of this module
from kdtree_patch.stats import StatsError, read_stats  # noqa: E402

UNIT = "sglang.service"
UNIT_PATH = f"/etc/systemd/system/{UNIT}"
PORT = 30000
RANKS = 8
ENGINE = "/opt/test-engine"  # tests/engine, read-only
PYTHON = f"{ENGINE}/light/bin/python3"
FAULT = "/run/test-engine/fault"
HEALTH = f"http://127.0.0.1:{PORT}/health"
COMMAND = (f"{PYTHON} -m sglang.launch_server --model-path /models/kimi-k2.6 --tp-size {RANKS} --port {PORT} "
           "--attention-backend triton --steps-per-second 20 --mem-fraction-static 0.94")
CONFIG: dict[str, Any] = {
    "engine": {"unit": UNIT, "python": PYTHON, "health_url": HEALTH, "ranks": RANKS},
    "kernel": {"device": "cpu"},
    "deadlines": {"healthy_s": 60, "stop_s": 20, "stable_s": 1},
    "validate": {"min_compares": 20},
}


def engine_unit(command: str = COMMAND, *, service: str = "", user: str = "sglang") -> str:
    """An operator's unit file for the light engine; `service` is more text for its [Service] section."""
    return (f"[Unit]\nDescription=SGLang (test engine)\nAfter=network.target\n\n[Service]\nUser={user}\n"
            f"Environment=TEST_ENGINE_FAULT_FILE={FAULT} PYTHONDONTWRITEBYTECODE=1\n"
            f"ExecStart={command}\nTimeoutStopSec=20\n{service}\n[Install]\nWantedBy=multi-user.target\n")


# The user that the engine runs as, made at the host's boot by systemd-sysusers; and the folder for faults on demand.
_USER = "u sglang - \"the engine\" /var/lib/sglang /bin/sh\n"
_FOLDERS = "d /run/test-engine 0755 root root\nd /var/lib/sglang 0755 sglang sglang\n"


def host_layer(layer: Path, *, fake_gpus: bool = True) -> Path:
    """Makes `layer`, what lies over the image: kdtree's package, the fake driver with eight GPUs, the engine's user."""
    engine_layer(layer, fake_gpus=fake_gpus)
    return install(layer)


def engine_layer(layer: Path, *, fake_gpus: bool = True) -> Path:
    """The same without kdtree's package: what an engine's host has before kdtree comes."""
    layer.mkdir()
    layer.chmod(0o755)
    if fake_gpus:
        add_fake_nvml(layer)
    for name, text in (("usr/lib/sysusers.d/test-engine.conf", _USER), ("usr/lib/tmpfiles.d/test-engine.conf", _FOLDERS)):
        (layer / name).parent.mkdir(parents=True, exist_ok=True)
        (layer / name).write_text(text)
    return layer


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `changes` laid over it, object by object; a value of None removes the key."""
    out = dict(base)
    for key, value in changes.items():
        if value is None:
            out.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(out.get(key), Mapping):
            out[key] = merged(out[key], value)
        else:
            out[key] = value
    return out


class KdtreeHost(Machine):
    """The machine with what a kdtree test asks of it."""

    def __init__(self, layers: Sequence[Path], binds: Sequence[Bind] = (), *, stand_in_kernel: bool = True,
                 options: Sequence[str] = ()) -> None:
        """`stand_in_kernel`: the light engine's kernel sources instead of the installed ones (its README says why).
        `options`: more arguments for systemd-nspawn."""
        engine = REPOSITORY / "tests" / "engine"
        shown = [Bind(engine, ENGINE), *binds]
        if stand_in_kernel:
            shown.append(Bind(engine / "light" / "kernel", "/usr/share/kdtree/kernel"))
        super().__init__(layers=layers, binds=shown, options=options)

    def ctl(self, *args: str, timeout: float = 120, env: Mapping[str, str] | None = None, user: str | None = None,
            input: str | None = None) -> Completed:
        """kdtreectl, without a terminal."""
        return self.run(["kdtreectl", *args], timeout=timeout, env=env, user=user, input=input)

    def facts(self, *args: str) -> Any:
        """What a verb prints with --json, whatever its exit code."""
        done = self.ctl(*args, "--json")
        try:
            return json.loads(done.out)
        except json.JSONDecodeError:
            raise AssertionError(f"kdtreectl {' '.join(args)} --json printed no JSON (exit {done.rc})\n{done.out}{done.err}") from None

    def configure(self, **changes: Any) -> None:
        """Writes /etc/kdtree/kdtree.json: the default of these tests with `changes` laid over it."""
        self.write("/etc/kdtree/kdtree.json", json.dumps(merged(CONFIG, changes), indent=1) + "\n")

    def install_engine(self, text: str | None = None, *, timeout: float = 40) -> None:
        """Writes the engine's unit, as an operator would, and waits until the engine answers."""
        self.write(UNIT_PATH, engine_unit() if text is None else text)
        self.systemctl("daemon-reload").check()
        self.systemctl("restart", UNIT).check()
        self.wait_healthy(timeout)

    def wait_healthy(self, timeout: float = 40) -> None:
        def healthy() -> bool:
            if self.show(UNIT, "ActiveState")["ActiveState"] == "failed":
                raise AssertionError("the engine's unit failed\n" + self.journal("-u", UNIT, "-n", "30"))
            return self.http(HEALTH)[0] == 200
        self.wait("the engine is healthy", healthy, timeout)

    def wait_armed(self, healthy_s: float = 40, armed_s: float = 20) -> None:
        """The engine is healthy, and then every rank has taken kdtree in."""
        self.wait_healthy(healthy_s)
        self.wait_ranks("every rank is armed", lambda rank: rank["patch_state"] == 1, armed_s)

    def fault(self, text: str = "") -> None:
        """Puts a fault (tests/engine/README.md) in force for the engine's processes; "" = none."""
        self.write(FAULT, text)

    def engine(self, *names: str) -> Any:
        """A property of the engine's unit as systemd has it; several names give a dict."""
        values = self.show(UNIT, *names)
        return values[names[0]] if len(names) == 1 else values

    def command_line(self) -> list[str]:
        """The running engine's own command line."""
        return self.run(["cat", f"/proc/{self.engine('MainPID')}/cmdline"]).check().out.split("\0")[:-1]

    def environment(self) -> dict[str, str]:
        """The running engine's environment."""
        text = self.read(f"/proc/{self.engine('MainPID')}/environ")
        return dict(line.split("=", 1) for line in text.split("\0") if line)

    def ranks(self) -> dict[int, dict[str, Any]]:
        """rank → its stats, read by the patch's own reader (not kdtreectl's) from files of processes that are there and
        have published within 10 s."""
        found = {}
        for file in self.path("/run/kdtree/stats").glob("*.stats"):
            try:
                values = read_stats(str(file))
            except (StatsError, OSError):
                continue
            fresh = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - values["updated_boottime_ns"] < 10_000_000_000
            if values["tp_rank"] >= 0 and fresh and self.path(f"/proc/{values['pid']}").exists():
                found[values["tp_rank"]] = values
        return found

    def wait_ranks(self, what: str, holds, timeout: float = 20) -> None:
        """Until every expected rank's stats satisfy `holds(stats)`."""
        def all_hold() -> bool:
            ranks = self.ranks()
            return len(ranks) == RANKS and all(holds(values) for values in ranks.values())
        self.wait(what, all_hold, timeout)

    def tree(self, *folders: str) -> dict[str, tuple]:
        """Every path below `folders`: kind and mode, owner, group, and what a file holds or a link points to."""
        found: dict[str, tuple] = {}
        for folder in folders:
            top = self.path(folder)
            for path in [top, *sorted(top.rglob("*"))] if top.exists() else []:
                about = path.lstat()
                held: Any = None
                if stat.S_ISLNK(about.st_mode):
                    held = str(path.readlink())
                elif stat.S_ISREG(about.st_mode):
                    held = path.read_bytes()
                found["/" + str(path.relative_to(self.path("/")))] = (about.st_mode, about.st_uid, about.st_gid, held)
        return found
