# SPDX-License-Identifier: Apache-2.0
"""What every stage is given: where things are, what GPU this is, how much time is left."""
import os
import subprocess
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from . import server as servers
from .records import Record
from .release import REPOSITORY, Release, build_kernel


# A program that uses NVLink multicast can put a shared host's GPUs out of service.
NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}


def gpu_facts(index: int = 0) -> dict[str, str]:
    """name, uuid and driver, as nvidia-smi says."""
    line = subprocess.run(["nvidia-smi", f"--id={index}", "--query-gpu=name,uuid,driver_version",
                           "--format=csv,noheader"], check=True, capture_output=True, text=True).stdout
    name, uuid, driver = (part.strip() for part in line.strip().split(","))
    return {"gpu": name, "gpu_uuid": uuid, "driver": driver}


def commit() -> str:
    """KDTREE_COMMIT, else git's answer."""
    given = os.environ.get("KDTREE_COMMIT")
    if given:
        return given
    done = subprocess.run(["git", "-C", str(REPOSITORY), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


@dataclass
class Context:
    """tp: of every server; deadline: monotonic time at which no stage starts any more; shapes: rows of the table, as
    "16k" or "dflash:16k", () = all."""

    site: str
    out: Path
    work: Path
    layers: int
    record: Record
    deadline: float
    tp: int = 1
    arch: str = "90"
    programs: str = ""
    entry_point: bool = False
    shapes: tuple[str, ...] = ()
    start: float = field(default_factory=time.monotonic)
    release: Release | None = None
    releases: dict[str, Release] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self.start:6.1f}] {text}", flush=True)

    def wants(self, spec: str, shape: str) -> bool:
        """This row of the table is to be measured."""
        return not self.shapes or (shape if spec == "ngram" else f"{spec}:{shape}") in self.shapes

    def stage(self, name: str, run: Callable[[], object], keep: str = "", needs_s: float = 0.0) -> object:
        """Runs one stage; what it returns is recorded under `keep`. A failure is recorded and the next stage goes on; one
        that needs more time than is left is skipped."""
        if time.monotonic() + needs_s > self.deadline:
            self.say(f"SKIPPED {name}: out of time")
            self.record.add("skipped", **{name: "out of time"})
            return None
        self.say(f"stage {name}")
        try:
            value = run()
        except Exception as error:
            traceback.print_exc()
            self.failed.append(name)
            self.record.add("failed", **{name: str(error)[-1500:]})
            return None
        if keep:
            self.record.put(keep, value)
            self.say(f"{name}: {value}")
        return value

    def make_release(self) -> Release:
        """Builds and installs kdtree. Errors: CalledProcessError; $OUT/build.log says why."""
        prefix = self.work / "kernel"
        build_kernel(prefix, self.arch, self.out / "build.log")
        self.release = Release(self.work / "root", prefix, self.site, self.record.data["gpu"])
        return self.release

    def release_of(self, name: str) -> Release:
        """The release as the server of that name runs it; "armed" has the product's own run folder."""
        if name not in self.releases:
            self.releases[name] = self.release if name == "armed" else self.release.for_server(name)
        return self.releases[name]

    def drop_in(self, mode: str) -> str:
        """The drop-in's text from kdtreectl's own code; "" where its programs weren't brought or don't run."""
        if not self.programs:
            return ""
        from . import host

        try:
            text = host.drop_in(self, mode)
        except (OSError, subprocess.CalledProcessError) as error:
            self.say(f"no drop-in from kdtree's own code: {error}")
            return ""
        self.record.put("drop_in", text.splitlines())
        return text

    def server(self, name: str, model: Path, flags: list[str], mode: str = "", hooks: dict[str, str] | None = None,
               entry_point: bool | None = None, ep: int = 1) -> servers.Server:
        """A starting server; mode "" = one that never saw kdtree. hooks: environment of tests/gpu/hooks; ep: ranks over
        which experts are spread."""
        environ, path = {}, []
        if mode:
            release = self.release_of(name)
            release.forget_control()
            environ = release.environ(mode, self.drop_in(mode))
            path = [environ.pop("PYTHONPATH")]
            if self.entry_point if entry_point is None else entry_point:
                path = [release.entry_point_path(), *path]
        environ |= hooks or {}
        if self.tp > 1:
            flags = [*flags, "--tp", str(self.tp), "--disable-custom-all-reduce"]
            environ |= NO_MULTICAST
        if ep > 1:
            flags = [*flags, "--ep-size", str(ep)]
        self.say(f"starting {name}")
        self.record.add("servers", **{name: {"flags": flags, "hooks": hooks or {}, "kdtree": mode or "none"}})
        return servers.Server(name, model, self.site, self.out / f"{name}.log", flags, path, environ)


def head(facts: dict[str, str], site: str, layers: int) -> dict[str, object]:
    """The head of a record."""
    import torch

    from .release import examine

    engine = examine(os.path.join(site, "sglang")) if site else None
    return {**facts, "sglang": engine.version if engine else "", "torch": torch.__version__, "layers": layers,
            "date": datetime.now(timezone.utc).isoformat(timespec="seconds"), "commit": commit()}
