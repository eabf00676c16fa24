# SPDX-License-Identifier: Apache-2.0
"""kdtree on the GPU host: the kernel built there, a release folder as deploy lays it out, the engine environment, the
control file and the ranks' stats files."""
import copy
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(REPOSITORY / "sitecustomize"))

from kdtree_patch.control import pack_control  # noqa: E402
from kdtree_patch.fingerprint import examine  # noqa: E402
from kdtree_patch.stats import StatsError, read_stats  # noqa: E402
from kdtree_patch.stats_format import BACK_NAMES, MODES  # noqa: E402, F401

SWITCH_S = 20.0


def build_kernel(prefix: Path, arch: str, log: Path) -> None:
    """kernel/ as its own project, for this Python's torch. Errors: CalledProcessError; why is in `log`."""
    folder = prefix.parent / (prefix.name + "-build")
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    with open(log, "ab") as out:
        for command in (["cmake", "-S", str(REPOSITORY / "kernel"), "-B", str(folder), *generator,
                         f"-DKDTREE_PYTHON={sys.executable}", f"-DKDTREE_CUDA_ARCHS={arch}"],
                        ["cmake", "--build", str(folder), "-j", str(os.cpu_count())],
                        ["cmake", "--install", str(folder), "--prefix", str(prefix)]):
            subprocess.run(command, check=True, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)


def read_drop_in(text: str) -> dict[str, str]:
    """Environment= of a unit's text, as systemd reads what kdtreectl writes."""
    values = {}
    for line in text.splitlines():
        if line.startswith("Environment="):
            for word in shlex.split(line.removeprefix("Environment=")):
                name, _, value = word.partition("=")
                values[name] = value.replace("%%", "%")
    return values


def lives(pid: int) -> bool:
    """False for a process that has ended, also where its parent hasn't waited for it yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class Release:
    """A release below `root` (/ on a real host): opt/kdtree/releases/<id>, var/lib/kdtree; run/kdtree below `run_root`."""

    def __init__(self, root: Path, kernel: Path, site: str, gpu: str, release_id: str = "gpu-test"):
        """kernel: where build_kernel installed to; site: folder of the sglang package, "" = this Python's own."""
        import torch

        self.root, self.run_root, self.id = root, root, release_id
        self.folder = root / "opt/kdtree/releases" / release_id
        self.stats, self.control = root / "run/kdtree/stats", root / "run/kdtree/control"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.stats.mkdir(parents=True, exist_ok=True)
        shutil.copytree(kernel, self.folder)
        for item in sorted((REPOSITORY / "sitecustomize").iterdir()):
            if item.name == "sitecustomize.py":
                shutil.copy(item, self.folder / "python")
            elif item.is_dir() and item.name != "__pycache__":
                shutil.copytree(item, self.folder / "python" / item.name, ignore=shutil.ignore_patterns("__pycache__"))
        engine = examine(os.path.join(site, "sglang")) if site else None
        files = {str(p.relative_to(self.folder)): hashlib.sha256(p.read_bytes()).hexdigest()
                 for p in sorted(self.folder.rglob("*")) if p.is_file()}
        self.manifest = {
            "format": 1, "release": release_id, "created": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "kdtree_version": "0.1.0", "source_digest": "", "device": "cuda", "archs": ["90"], "nvcc": "",
            "torch": torch.__version__, "python": sys.executable, "python_version": sys.version.split()[0],
            "engine": "sglang", "engine_version": engine.version if engine else "",
            "engine_fingerprint": engine.fingerprint if engine else "", "selftest_device": gpu, "selftest_cases": 0,
            "files": files}
        (self.folder / "manifest.json").write_text(json.dumps(self.manifest, indent=1))
        self.library = self.folder / "lib/libkdtree_torch.so"
        self._generation = 0

    def for_server(self, name: str) -> "Release":
        """The same release with a run folder of its own: two servers must not follow one control file."""
        other = copy.copy(self)
        other.run_root = self.root.parent / f"{self.root.name}-{name}"
        other.stats, other.control = other.run_root / "run/kdtree/stats", other.run_root / "run/kdtree/control"
        other.stats.mkdir(parents=True, exist_ok=True)
        other.control.unlink(missing_ok=True)
        return other

    def environ(self, mode: str, drop_in: str = "") -> dict[str, str]:
        """What the drop-in sets, with this root in front of its paths. drop_in: its text, as kdtreectl writes it; "" = the
        same written down here, for a host where kdtree's programs don't run."""
        values = read_drop_in(drop_in) if drop_in else {
            "KDTREE_VERIFY": mode, "KDTREE_LIB": f"/opt/kdtree/releases/{self.id}/lib/libkdtree_torch.so",
            "KDTREE_DEFRAG_SORT": "1", "KDTREE_NSPLIT": "", "KDTREE_MAX_ULP": "4", "KDTREE_MEAN_ULP": "0.5",
            "PYTHONPATH": f"/opt/kdtree/releases/{self.id}/python"}
        below = {name: str(self.root) + value if value.startswith("/opt/kdtree") and self.root != Path("/") else value
                 for name, value in values.items()}
        return {**below, "KDTREE_STATS_DIR": str(self.stats), "KDTREE_CONTROL": str(self.control)}

    def entry_point_path(self) -> str:
        """Goes in front of PYTHONPATH to have SGLang's plugin entry point as the only way in: an empty sitecustomize."""
        folder = self.root / "entry-point"
        folder.mkdir(exist_ok=True)
        (folder / "sitecustomize.py").write_text("")
        return str(folder)

    def write_control(self, mode: str) -> float:
        """As kdtreectl does; returns the monotonic time of the rename."""
        self._generation += 1
        fresh = self.control.with_suffix(".new")
        fresh.write_bytes(pack_control(MODES[mode], self._generation))
        fresh.chmod(0o644)
        fresh.rename(self.control)
        return time.monotonic()

    def forget_control(self) -> None:
        self.control.unlink(missing_ok=True)

    def ranks(self) -> list[dict]:
        """What each living rank's stats file says, by rank."""
        found = []
        for path in sorted(self.stats.glob("*.stats")):
            try:
                values = read_stats(str(path))
            except StatsError:
                continue
            if lives(values["pid"]) and values["tp_rank"] >= 0:
                found.append(values)
        return sorted(found, key=lambda v: (v["tp_rank"], v["pid"]))

    def in_force(self, mode: str, count: int) -> bool:
        """`count` ranks say that they follow the last control file, in this mode."""
        ranks = self.ranks()
        return len(ranks) == count and all(
            r["mode"] == MODES[mode] and r["control_generation"] == self._generation for r in ranks)

    def switch(self, mode: str, count: int = 1) -> float:
        """Writes the control file and waits until every rank reports it; seconds from the rename to the last report.
        Errors: RuntimeError after SWITCH_S."""
        start = self.write_control(mode)
        while not self.in_force(mode, count):
            if time.monotonic() - start > SWITCH_S:
                raise RuntimeError(f"{mode} is not in force: {[(r['mode'], r['reason']) for r in self.ranks()]}")
            time.sleep(0.001)
        return time.monotonic() - start
