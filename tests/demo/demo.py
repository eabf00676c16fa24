# SPDX-License-Identifier: Apache-2.0
"""`make demo`: a throw-away systemd host on which kdtree goes from nothing to KDTREE_VERIFY=on, and takes back a broken change.

The engine is tests/engine's heavy one: SGLang's own attention class and Triton kernel, in rank processes started as
SGLang starts them. With a GPU it uses that; without one everything runs on the CPU and the output says so.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import urllib.parse
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Iterator

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "host"))
sys.path.insert(0, str(HERE))

import gpu  # noqa: E402
import summary  # noqa: E402
from image import HostError  # noqa: E402
from kdtree_host import FAULT, HEALTH, UNIT, UNIT_PATH, KdtreeHost, host_layer  # noqa: E402
from machine import Bind, Scratch, why_not  # noqa: E402
from package import REPOSITORY  # noqa: E402

RANKS = 2
PYTHON = "/opt/sglang/bin/python3"
PORT = 30000
# A call of SGLang's Triton kernel takes 0.2 s under its interpreter, so the demo is content with fewer than the 1000
# compares on each rank that a real host asks for. On a GPU it is not.
MIN_COMPARES = {"cpu": 40, "cuda": 1000}
PROMETHEUS = "http://127.0.0.1:9090"
WHAT_ELSE = "without a throw-away host these still run: ctest --preset gpu; python3 -m pytest tests -m 'not slow' (host tests are skipped)"


class DemoFailed(RuntimeError):
    """A step that did not end as it has to, in one line."""


class Demo:
    """The host, and what the steps found out for the summary."""

    def __init__(self, host: KdtreeHost, device: str, started: float) -> None:
        self.host, self.device, self.started = host, device, started
        self.facts: dict[str, Any] = {"device": device, "ranks": RANKS}
        self._step = 0

    def step(self, title: str) -> None:
        self._step += 1
        passed = int(time.monotonic() - self.started)
        print(f"\n[{passed // 60}:{passed % 60:02d}] {self._step}. {title}", flush=True)

    def ctl(self, *args: str, expect: int = 0) -> tuple[float, str]:
        """Runs kdtreectl, shows what it says, returns (seconds, text). Another exit code than `expect` ends the demo."""
        print(f"  $ kdtreectl {' '.join(args)}", flush=True)
        began, said = time.monotonic(), []
        with self.host.start(["sh", "-c", 'exec "$@" 2>&1', "sh", "kdtreectl", *args]) as job:
            for line in job.stdout:
                said.append(line)
                print(f"  | {line}", end="", flush=True)
        if job.returncode != expect:
            raise DemoFailed(f"kdtreectl {' '.join(args)} exited {job.returncode}, not {expect}")
        return time.monotonic() - began, "".join(said)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """An instant query to the demo's Prometheus: its result vector."""
        status, body = self.host.http(f"{PROMETHEUS}/api/v1/query?query={urllib.parse.quote(expression)}")
        return json.loads(body)["data"]["result"] if status == 200 else []

    def generate(self) -> list[int]:
        """Greedy tokens for a fixed prompt."""
        request = json.dumps({"input_ids": list(range(7, 40)), "sampling_params": {"max_new_tokens": 6}})
        done = self.host.run(["curl", "-s", "-m", "120", "-d", request, "-H", "Content-Type: application/json",
                              f"http://127.0.0.1:{PORT}/generate"], timeout=130)
        try:
            return json.loads(done.out)["output_ids"]
        except (json.JSONDecodeError, KeyError, TypeError):
            raise DemoFailed(f"/generate did not answer with tokens: {done.out[:200]!r}") from None


def engine_text(device: str) -> str:
    """The operator's unit file."""
    command = (f"{PYTHON} /opt/test-engine/serve.py --model-path /models/kimi-k2.6 --tp-size {RANKS} --port {PORT} --device {device} "
               "--attention-backend triton --mem-fraction-static 0.90 --speculative-num-draft-tokens 9 --steps-per-second 5")
    return (f"[Unit]\nDescription=SGLang\n\n[Service]\nUser=sglang\nEnvironment=TEST_ENGINE_FAULT_FILE={FAULT} OMP_NUM_THREADS=1\n"
            f"ExecStart={command}\nTimeoutStopSec=30\n\n[Install]\nWantedBy=multi-user.target\n")


def configuration(device: str, **more: Any) -> dict[str, Any]:
    return {"engine": {"unit": UNIT, "python": PYTHON, "health_url": HEALTH, "ranks": RANKS},
            "kernel": {"device": device}, "validate": {"min_compares": MIN_COMPARES[device]},
            "deadlines": {"healthy_s": 240, "stop_s": 30, "stable_s": 2}, **more}


@contextmanager
def prometheus(host: KdtreeHost, scratch: Path) -> Iterator[None]:
    """Debian's Prometheus with the configuration that kdtree installs, in the host's network. Ends with the demo."""
    config = host.path("/usr/share/kdtree/dashboards/prometheus.yml")
    with open(scratch / "prometheus.log", "w") as log:
        job = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *host.in_network(
                ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={scratch / 'prometheus'}",
                 f"--web.listen-address={urllib.parse.urlparse(PROMETHEUS).netloc}"])],
            stdout=log, stderr=subprocess.STDOUT)
    try:
        host.wait("Prometheus is ready", lambda: job.poll() is not None or host.http(f"{PROMETHEUS}/-/ready")[0] == 200)
        if job.poll() is not None:
            raise DemoFailed(f"Prometheus ended: {(scratch / 'prometheus.log').read_text().strip().splitlines()[-1]}")
        yield
    finally:
        job.kill()
        job.wait()


def run(demo: Demo, scratch: Path) -> None:
    host, facts = demo.host, demo.facts

    demo.step(f"the host as its operator has it: {UNIT}, {RANKS} ranks, no kdtree in it")
    host.write("/etc/kdtree/kdtree.json", json.dumps(configuration(demo.device), indent=1))
    host.install_engine(engine_text(demo.device), timeout=240)
    facts["files_before"] = host.tree("/etc", "/opt/kdtree", "/var/lib/kdtree")
    facts["unit_before"] = host.read(UNIT_PATH)
    facts["command_before"] = host.command_line()
    facts["tokens"] = {"plain": demo.generate()}
    print(f"  {' '.join(facts['command_before'])}")

    demo.step("is this host ready?")
    demo.ctl("doctor")

    demo.step("deploy: build the kernel, prove it, install, restart the engine behind the health gate")
    facts["deploy_s"], _ = demo.ctl("deploy", "--yes")
    engine = host.engine("InvocationID", "MainPID")

    with prometheus(host, scratch):
        demo.step("validate, live: both kernels run, SGLang's answers, the difference is kept")
        facts["to_validate_s"], _ = demo.ctl("mode", "validate", "--yes")
        wanted = MIN_COMPARES[demo.device]
        print(f"  waiting for {wanted} compares on each rank (min_compares of this demo's configuration; the default is 1000)", flush=True)
        facts["tokens"]["validate"] = demo.generate()
        host.wait("enough compares", lambda: len(host.ranks()) == RANKS and
                  all(rank["compares"] >= wanted for rank in host.ranks().values()), timeout=120)
        demo.ctl("verdict")
        facts["validate"] = summary.compared(host.ranks())

        demo.step("on, live: kdtree's kernel answers")
        facts["to_on_s"], _ = demo.ctl("mode", "on", "--yes")
        before = host.ranks()
        facts["tokens"]["on"] = demo.generate()
        host.wait("calls answered by kdtree's kernel", lambda: all(
            rank["calls_kernel"] > before[number]["calls_kernel"] + 20 for number, rank in host.ranks().items()), timeout=60)
        if host.engine("InvocationID", "MainPID") != engine:
            raise DemoFailed("the engine was restarted by a switch that should have been live")
        facts["served"] = summary.served(host.ranks())

        demo.step("a broken change: mode on with a memory fraction that doesn't fit. It has to take itself back")
        host.fault("oom:0.95")
        print("  (kdtree.json: modes.on.mem_fraction_static = 0.99; the engine runs out of memory above 0.95)")
        host.write("/etc/kdtree/kdtree.json", json.dumps(configuration(demo.device, modes={"on": {"mem_fraction_static": 0.99}}), indent=1))
        facts["broken_s"], _ = demo.ctl("mode", "on", "--yes", expect=4)
        host.write("/etc/kdtree/kdtree.json", json.dumps(configuration(demo.device), indent=1))
        host.fault()
        if host.command_line() != facts["command_before"]:
            raise DemoFailed("after the rollback the engine's command line is not what it was")
        facts["tokens"]["after"] = demo.generate()

        demo.step("status")
        demo.ctl("status")
        host.wait("Prometheus has seen the ranks in mode on", lambda: len(demo.query('kdtree_rank_mode{mode="on"} == 1')) == RANKS, timeout=60)
        host.wait("Prometheus has the calls of both", lambda: demo.query("sum(kdtree_verify_calls_total) > 0"), timeout=60)
        facts["prometheus"] = {
            "up": [row["value"][1] for row in demo.query('up{job="kdtree"}')],
            "gpus": len(demo.query("kdtree_gpu_utilization_ratio")),
            "ranks_on": len(demo.query('kdtree_rank_mode{mode="on"} == 1')),
            "calls": {row["metric"]["by"]: int(float(row["value"][1])) for row in demo.query("sum by (by) (kdtree_verify_calls_total)")},
            "handed_back": {row["metric"]["reason"]: int(float(row["value"][1]))
                            for row in demo.query("sum by (reason) (kdtree_verify_handed_back_total) > 0")},
            "alerts": sorted({row["metric"]["alertname"] for row in demo.query('ALERTS{alertstate="firing"}')}),
        }
        facts["history"] = host.facts("history")

        demo.step("what the agent shows" + ("" if demo.device == "cuda" else " (the eight GPUs are simulated by the tests' libnvidia-ml)"))
        demo.ctl("heatmap", "--once")
    facts["files_after"] = host.tree("/etc", "/opt/kdtree", "/var/lib/kdtree")
    facts["unit_after"] = host.read(UNIT_PATH)
    facts["drop_in"] = host.read(f"{UNIT_PATH}.d/60-kdtree.conf")


def engine_environment() -> Path:
    """The locked Python environment with SGLang."""
    done = subprocess.run([REPOSITORY / "tests" / "env" / "setup.sh", "--print"], capture_output=True, text=True)
    if done.returncode != 0:
        raise HostError(done.stderr.strip().removeprefix("setup: "))
    return Path(done.stdout.strip())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: cuda where there is an NVIDIA GPU")
    parser.add_argument("--shell", action="store_true", help="open a shell on the host before it goes")
    parser.add_argument("--facts", type=Path, help="write what the summary was made of to this file, as JSON")
    options = parser.parse_args()
    reason = why_not()
    if reason:
        print(f"demo: {reason}; {WHAT_ELSE}", file=sys.stderr)
        return 3
    device = options.device if options.device != "auto" else "cuda" if gpu.present() else "cpu"
    started = time.monotonic()
    print("kdtree demo: a throw-away Debian 12 host under its own systemd; all of this happens in there and is gone at the end.\n"
          f"engine: SGLang's own attention class and Triton kernel, {RANKS} rank processes; "
          + ("on this machine's GPU." if device == "cuda" else "CPU implementation: no GPU is used, and no figure here says how fast anything is."),
          flush=True)
    scratch = Scratch()
    demo = None
    try:
        layer = host_layer(scratch.folder / "package", fake_gpus=device == "cpu")
        binds = [Bind(engine_environment(), "/opt/sglang"), *(gpu.binds() if device == "cuda" else [])]
        with KdtreeHost([layer], binds, stand_in_kernel=False) as host:
            demo = Demo(host, device, started)
            try:
                run(demo, scratch.folder)
                demo.facts["seconds"] = time.monotonic() - started
                print("\n" + summary.text(demo.facts))
                if options.facts:
                    options.facts.write_text(json.dumps(summary.plain(demo.facts), indent=1) + "\n")
            except (DemoFailed, AssertionError, TimeoutError) as error:
                print(f"\nengine's journal:\n{host.journal('-u', UNIT, '-n', '40')}", file=sys.stderr)
                print(f"demo: {str(error).splitlines()[0]}", file=sys.stderr)
                return 1
            finally:
                if options.shell:
                    subprocess.run(["nsenter", "-t", str(host.leader), "-a", "bash", "-l"])
    except HostError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 3
    finally:
        scratch.remove()
    return 0


if __name__ == "__main__":
    sys.exit(main())
