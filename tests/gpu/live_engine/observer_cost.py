# SPDX-License-Identifier: Apache-2.0
"""What kdtree adds to a step besides its attention: kernel/bench/bench_observe.py, the difference of two graph replays."""
import json
import os
import subprocess
import sys
from pathlib import Path

from .release import REPOSITORY


def measure(library: str, out: Path, commit: str, site: str = "") -> dict:
    """Its report; site: where SGLang is, for the engine's own kernel. Errors: CalledProcessError."""
    subprocess.run([sys.executable, str(REPOSITORY / "kernel/bench/bench_observe.py"), "--lib", library, "--out", str(out),
                    "--commit", commit, "--quick"], check=True, stdin=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": site})
    return json.loads(out.read_text())
