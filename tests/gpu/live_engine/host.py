# SPDX-License-Identifier: Apache-2.0
"""kdtree's own programs on the GPU host: the drop-in as deploy writes it, kdtreectl on the real ranks, kdtree-agent with
the real NVML. There may be no systemd: what needs it is left out."""
import json
import os
import subprocess
import time
import urllib.request
from pathlib import Path

from . import load
from .server import Server, free_port

LEFT_OUT = ("#", "kdtree_moe_expert")  # too many lines for a record
MOST_LINES = 200
AGENT_READY_S = 1.5  # listening, and past its first look at the ranks


def run(context, name: str, *arguments: object) -> subprocess.CompletedProcess:  # noqa: ANN001
    """One of kdtree's programs, with the libraries that were brought along."""
    folder = Path(context.programs)
    paths = [str(folder / "lib"), os.environ.get("LD_LIBRARY_PATH", "")]
    return subprocess.run([str(folder / name), *map(str, arguments)], capture_output=True, text=True, timeout=60,
                          stdin=subprocess.DEVNULL, env={**os.environ, "LD_LIBRARY_PATH": ":".join(filter(None, paths))})


def write_config(context) -> Path:  # noqa: ANN001
    """etc/kdtree/kdtree.json below the release's root."""
    path = context.release.root / "etc/kdtree/kdtree.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"engine": {
        "unit": "sglang.service", "python": context.release.manifest["python"],
        "health_url": "http://127.0.0.1:30000/health", "ranks": context.tp}}))
    return path


def drop_in(context, mode: str) -> str:  # noqa: ANN001
    """Errors: OSError, CalledProcessError."""
    config = write_config(context)
    unit = config.with_name("sglang.service")
    unit.write_text(f"[Service]\nExecStart={context.release.manifest['python']} -m sglang.launch_server\n")
    state = context.release.root / "var/lib/kdtree/state.json"
    state.parent.mkdir(parents=True, exist_ok=True)
    done = run(context, "gpu_engine_unit", config, unit, context.release.id, mode, state)
    done.check_returncode()
    return done.stdout


def verdict(context) -> dict:  # noqa: ANN001
    """What `kdtreectl verdict` says of the ranks in the product's run folder."""
    done = run(context, "kdtreectl", "--root", context.release.root, "verdict", "--json")
    return {"exit_status": done.returncode, "verdict": json.loads(done.stdout) if done.stdout else done.stderr.strip()}


def bench(context, server: Server) -> dict:  # noqa: ANN001
    """`kdtreectl bench --engine` of the running engine, off and then on beside it: the table, and both reports."""
    folder = context.work / "bench"
    folder.mkdir(exist_ok=True)
    found: dict = {}
    arguments = ["--root", context.release.root, "bench", "--engine", server.url, "--contexts", "1k,4k,16k", "--steps", "16"]
    for mode in ("off", "on"):
        context.release.switch(mode, context.tp)
        done = run(context, "kdtreectl", *arguments, "--json")
        done.check_returncode()
        (folder / f"{mode}.json").write_text(done.stdout)
        found[mode] = json.loads(done.stdout)
    table = run(context, "kdtreectl", *arguments, "--against", folder / "off.json")
    table.check_returncode()
    return {**found, "table": table.stdout.splitlines()}


class Agent:
    """kdtree-agent beside the ranks of one release, ready to be scraped; used as a context."""

    def __init__(self, context, release, log: str):  # noqa: ANN001
        self._context, self._root, self._log, self.port = context, release.run_root, context.out / log, free_port()

    def __enter__(self) -> "Agent":
        if self._root != Path("/") and not (self._root / "proc").exists():
            (self._root / "proc").symlink_to("/proc")
        folder = Path(self._context.programs)
        paths = [str(folder / "lib"), os.environ.get("LD_LIBRARY_PATH", "")]
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                [str(folder / "kdtree-agent"), "--root", str(self._root), "--listen", f"127.0.0.1:{self.port}"],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                env={**os.environ, "LD_LIBRARY_PATH": ":".join(filter(None, paths))})
        return self

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
            return answer.read().decode()

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(10)


def exported(context, release, series: str) -> dict[str, float]:  # noqa: ANN001
    """What a fresh agent says of one series of these ranks, by labels; {} = it has none."""
    with Agent(context, release, "agent-exported.log") as agent:
        time.sleep(AGENT_READY_S)
        lines = agent.get("/metrics").splitlines()
    rows = (line.rpartition(" ") for line in lines if line.startswith(series + "{"))
    return {name.removeprefix(series): float(value) for name, _, value in rows}


def scrape(context, server: Server, kind: str = "") -> dict:  # noqa: ANN001
    """The agent beside the running engine, under load: validate, then on. The whole scrape goes to $OUT/agent.txt (agent-<kind>.txt),
    what its page draws to live.json beside it (tests/agent/draw_page.py makes the picture)."""
    suffix = f"-{kind}" if kind else ""
    context.release.switch("validate", context.tp)
    load.together(server.url, [load.prompt_ids(60, 800)], 400, 40)
    time.sleep(0.6)
    found: dict = {"kdtreectl_verdict": verdict(context)}
    context.release.switch("on", context.tp)
    with Agent(context, context.release, f"agent{suffix}.log") as agent:
        load.together(server.url, [load.prompt_ids(61, 800)], 4000, 350)
        text, live = agent.get("/metrics"), agent.get("/live.json")
        heatmap = run(context, "kdtreectl", "--root", context.release.root, "heatmap", "--once", "--agent",
                      f"127.0.0.1:{agent.port}")
    (context.out / f"live{suffix}.json").write_text(live)
    (context.out / f"agent{suffix}.txt").write_text(text + "\n# kdtreectl heatmap --once\n" + heatmap.stdout)
    lines = [line for line in text.splitlines() if line and not line.startswith(LEFT_OUT)]
    found["series"] = lines[:MOST_LINES]
    if not any(line.startswith("kdtree_gpu_utilization_ratio") for line in lines):
        raise RuntimeError(f"no GPU in the scrape: {lines[:20]}")
    return found
