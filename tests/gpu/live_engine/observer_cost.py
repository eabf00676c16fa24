# SPDX-License-Identifier: Apache-2.0
"""What kdtree adds to a step besides its attention: kernel/bench/bench_observe.py, the difference of two graph replays."""
import json
import subprocess
import sys
from pathlib import Path

from .release import REPOSITORY


def measure(library: str, out: Path, commit: str) -> dict:
    """Its report. Errors: CalledProcessError."""
    subprocess.run([sys.executable, str(REPOSITORY / "kernel/bench/bench_observe.py"), "--lib", library, "--out", str(out),
                    "--commit", commit], check=True, stdin=subprocess.DEVNULL)
    return json.loads(out.read_text())
