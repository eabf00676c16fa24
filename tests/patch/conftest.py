# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the patch tests: a release with a stand-in kernel, an environment, real Python subprocesses."""
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
SITE = HERE.parent.parent / "sitecustomize"
sys.path.insert(0, str(SITE))


class Rig:
    """A release folder, a stats folder, a control file, and Python processes that see them."""

    def __init__(self, root: Path):
        self.root = root
        self.release = root / "releases" / "r1"
        self.library = self.release / "lib" / "libkdtree_torch.so"
        self.python = self.release / "python"
        self.stats = root / "stats"
        self.control = root / "control"
        for folder in (self.library.parent, self.python, self.stats):
            folder.mkdir(parents=True)
        self.library.write_bytes(b"stand-in")
        (self.python / "kdtree_kernel").symlink_to(HERE / "stand_in" / "kdtree_kernel")
        self.manifest = {"release": "r1", "torch": self.torch_version(),
                         "files": {"lib/libkdtree_torch.so": hashlib.sha256(b"stand-in").hexdigest()}}
        self.write_manifest()

    @staticmethod
    def torch_version() -> str:
        from kdtree_patch.probe import torch_version
        return torch_version()

    def write_manifest(self, **changes: object) -> None:
        self.manifest.update(changes)
        (self.release / "manifest.json").write_text(json.dumps(self.manifest))

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
        return subprocess.run([sys.executable, *flags, "-c", code], env=environ, text=True, capture_output=True,
                              timeout=timeout, check=False, cwd=self.root)

    def json(self, code: str, *flags: str, **options: object) -> object:
        """What `code` printed last, as JSON; the process must end well."""
        done = self.run(code, *flags, **options)
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)
