# SPDX-License-Identifier: Apache-2.0
"""kdtree's package as a folder to lay over the throw-away host's image: what `cmake --install` puts under /usr."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from image import HostError

REPOSITORY = Path(__file__).resolve().parents[2]
LIBRARIES = "usr/lib/x86_64-linux-gnu"
FAKE_GPUS = "/etc/fake-nvml.json"  # what the simulated GPUs do; looked at while the agent runs (tests/fake_nvml/README.md)


def build_folder() -> Path:
    """The build to install from: KDTREE_BUILD, else build/gpu, build/dev or build/release, the first that has a kdtreectl."""
    given = os.environ.get("KDTREE_BUILD")
    candidates = [Path(given)] if given else [REPOSITORY / "build" / preset for preset in ("gpu", "dev", "release")]
    for folder in candidates:
        if (folder / "agent" / "kdtreectl").exists():
            return folder
    raise HostError(f"no kdtreectl in {' or '.join(map(str, candidates))}; run 'make build', or name a build in KDTREE_BUILD")


def install(into: Path) -> Path:
    """Installs the package below `into` as a Debian package would (prefix /usr) and returns `into`."""
    done = subprocess.run(["cmake", "--install", str(build_folder()), "--prefix", "/usr"], capture_output=True, text=True,
                          env={**os.environ, "DESTDIR": str(into)})
    if done.returncode != 0:
        raise HostError(f"cmake --install {build_folder()} failed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    into.chmod(0o755)
    return into


def add_fake_nvml(into: Path) -> None:
    """Puts the tests' libnvidia-ml.so.1 (eight GPUs, busy in waves) where a driver's would be."""
    library = build_folder() / "tests" / "fake_nvml" / "libnvidia-ml.so.1"
    if not library.exists():
        raise HostError(f"{library} is missing; build with KDTREE_WITH_TESTS=ON")
    folder = into / LIBRARIES
    folder.mkdir(parents=True, exist_ok=True)
    (folder / library.name).write_bytes(library.read_bytes())
    (folder / library.name).chmod(0o755)
    drop_in = into / "usr/lib/systemd/system/kdtree-agent.service.d/50-fake-gpus.conf"
    drop_in.parent.mkdir(parents=True, exist_ok=True)
    drop_in.write_text(f"[Service]\nEnvironment=KDTREE_FAKE_NVML={FAKE_GPUS}\n")
    waves = into / FAKE_GPUS.lstrip("/")
    waves.parent.mkdir(parents=True, exist_ok=True)
    waves.write_text(json.dumps({"gpus": {str(gpu): {"utilization": "wave"} for gpu in range(8)}}) + "\n")


def missing_libraries(host, *programs: str) -> list[str]:
    """Shared libraries that the host's linker doesn't find for `programs`, as "program: library"."""
    missing = []
    for program in programs:
        for line in host.run(["ldd", program]).check().out.splitlines():
            if "not found" in line:
                missing.append(f"{program}: {line.split()[0]}")
    return missing
