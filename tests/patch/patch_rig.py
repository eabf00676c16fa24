# SPDX-License-Identifier: Apache-2.0
"""What the patch tests run in: a release with a stand-in kernel, an environment, real Python subprocesses."""
import functools
import hashlib
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SITE = HERE.parent.parent / "sitecustomize"
sys.path.insert(0, str(SITE))


LIGHT = HERE.parent / "engine" / "light"


class Rig:
    """A release folder, a stats folder, a control file, and Python processes that see them."""

    interpreter = sys.executable
    kernel_package = HERE / "stand_in" / "kdtree_kernel"
    library_bytes = b"stand-in"

    def __init__(self, root: Path):
        self.root = root
        self.release = root / "releases" / "r1"
        self.library = self.release / "lib" / "libkdtree_torch.so"
        self.python = self.release / "python"
        self.stats = root / "stats"
        self.control = root / "control"
        for folder in (self.library.parent, self.python, self.stats):
            folder.mkdir(parents=True)
        self.library.write_bytes(self.library_bytes)
        (self.python / "kdtree_kernel").symlink_to(self.kernel_package)
        self.manifest = {"release": "r1", "torch": self.torch_version(), "python_version": self.python_version(),
                         "engine_version": self.engine().version, "engine_fingerprint": self.engine().fingerprint,
                         "files": {"lib/libkdtree_torch.so": hashlib.sha256(self.library_bytes).hexdigest()}}
        self.write_manifest()

    @staticmethod
    def torch_version() -> str:
        from kdtree_patch.probe import torch_version
        return torch_version()

    @staticmethod
    def python_version() -> str:
        return platform.python_version()

    @staticmethod
    def engine() -> object:
        """The engine that the release is made for."""
        return installed_engine()

    def write_manifest(self, **changes: object) -> None:
        self.manifest.update(changes)
        (self.release / "manifest.json").write_text(json.dumps(self.manifest))

    def stats_files(self) -> list[dict[str, object]]:
        """What every stats file in the folder says."""
        from kdtree_patch.stats import read_stats
        return [read_stats(str(path)) for path in sorted(self.stats.iterdir())]

    def write_control(self, mode: int, generation: int = 1, release: str = "") -> None:
        """As kdtreectl does: a new file renamed over the old one."""
        from kdtree_patch.control import pack_control
        new = self.control.with_suffix(".new")
        new.write_bytes(pack_control(mode, generation, release))
        new.chmod(0o644)
        new.rename(self.control)

    def environ(self, **changes: str | None) -> dict[str, str]:
        """The environment that the drop-in makes; a change to None takes the variable out."""
        names: dict[str, str | None] = {
            "PATH": os.environ["PATH"], "HOME": str(self.root), "KDTREE_VERIFY": "off",
            "KDTREE_LIB": str(self.library), "KDTREE_STATS_DIR": str(self.stats), "KDTREE_CONTROL": str(self.control),
            "PYTHONPATH": f"{SITE}:{self.python}", "PYTHONDONTWRITEBYTECODE": "1", "TRITON_INTERPRET": "1",
            "TRITON_CACHE_DIR": str(self.root / "triton"), **changes}
        return {name: value for name, value in names.items() if value is not None}

    def run(self, code: str, *flags: str, path: str = "", timeout: int = 240,
            **changes: str | None) -> subprocess.CompletedProcess:
        """Runs `code` in this Python. path: folders to put before PYTHONPATH's own."""
        environ = self.environ(**changes)
        if path:
            environ["PYTHONPATH"] = f"{path}:{environ['PYTHONPATH']}"
        return subprocess.run([self.interpreter, *flags, "-c", code], env=environ, text=True, capture_output=True,
                              timeout=timeout, check=False, cwd=self.root)

    def json(self, code: str, *flags: str, **options: object) -> object:
        """What `code` printed last, as JSON; the process must end well."""
        done = self.run(code, *flags, **options)
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout.strip().splitlines()[-1])


class LightRig(Rig):
    """The same with the light test engine's Python: its stand-in torch and sglang, started in a moment."""

    interpreter = str(LIGHT / "bin" / "python3")
    kernel_package = LIGHT / "kernel" / "python" / "kdtree_kernel"

    @staticmethod
    def torch_version() -> str:
        return "2.11.0+light"

    @staticmethod
    def python_version() -> str:
        return "3.11.2"

    @staticmethod
    def engine() -> object:
        return light_engine()

    def environ(self, **changes: str | None) -> dict[str, str]:
        """Accepts the light engine, whose fingerprint is no release's."""
        return super().environ(**{"KDTREE_ACCEPT_ENGINE": light_engine().fingerprint, **changes})


@functools.lru_cache(maxsize=1)
def installed_engine() -> object:
    from kdtree_patch.fingerprint import examine, find_package
    return examine(find_package())


@functools.lru_cache(maxsize=1)
def light_engine() -> object:
    from kdtree_patch.fingerprint import examine
    return examine(str(LIGHT / "lib" / "python3.11" / "site-packages" / "sglang"))


# What subprocesses that drive SGLang's own class begin and end with; in between they fill `facts`.
PREAMBLE = f"""
import json, os, sys, time
sys.path.insert(0, {str(HERE)!r})
from types import SimpleNamespace
import torch
from real_class import Scene, ForwardMode
from kdtree_patch import stats_format as f
from kdtree_patch.moe import wrap_forward
from kdtree_patch.patch import PATCH
from kdtree_patch.stats import read_stats

def one_pass(act, valid, mode=ForwardMode.TARGET_VERIFY):
    # a target model's forward of `valid` tokens, padding left out; SGLang's own runs in the heavy test engine
    batch = SimpleNamespace(forward_mode=mode, num_token_non_padded_cpu=valid, global_num_tokens_cpu=None)
    wrap_forward(lambda runner, batch: act(), PATCH)(SimpleNamespace(is_draft_worker=False), batch)

def stats():
    PATCH._publish()
    found = read_stats(PATCH._writer.path)
    found["batches"] = sorted(found["batches"].items())
    return found

facts = {{}}
"""
SHOW = "\nprint(json.dumps(facts))\n"


def ask(rig: Rig, code: str, **changes: str | None) -> dict:
    done = rig.run(code, **changes)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])
