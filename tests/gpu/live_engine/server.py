# SPDX-License-Identifier: Apache-2.0
"""One real SGLang server with dummy weights: started, waited for, read, ended."""
import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from . import load

CLOSE_S = 20.0
HOOKS = Path(__file__).resolve().parent.parent / "hooks"
ABSENT = HOOKS.parent / "absent"
_FIXED = {"HF_HUB_OFFLINE": "1", "SGLANG_IS_FLASHINFER_AVAILABLE": "false", "SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK": "1",
          "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}
_CAPTURE = re.compile(r"Capture target verify CUDA graph end\. elapsed=([0-9.]+) s")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def ngram(n: int = 9) -> list[str]:
    return ["--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", str(n)]


def dflash(model: Path, n: int = 9) -> list[str]:
    return ["--speculative-algorithm", "DFLASH", "--speculative-draft-model-path", str(model / "draft"),
            "--speculative-dflash-block-size", str(n), "--speculative-draft-attention-backend", "triton"]


def eagle(topk: int = 4, n: int = 9) -> list[str]:
    """The model's own next-token layer drafts a tree."""
    return ["--speculative-algorithm", "EAGLE", "--speculative-num-steps", "3", "--speculative-eagle-topk", str(topk),
            "--speculative-num-draft-tokens", str(n)]


def absent_packages() -> list[str]:
    """What goes at the end of PYTHONPATH for a server with EAGLE: [] where its package is installed."""
    return [] if importlib.util.find_spec("deep_gemm") else [str(ABSENT)]


class Server:
    """A started server; use close(). `environ` comes on top of ours; `path` goes in front of PYTHONPATH."""

    def __init__(self, name: str, model: Path, site: str, log: Path, flags: list[str], path: list[str] | None = None,
                 environ: dict[str, str] | None = None):
        self.name, self.log_path = name, log
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        self.started = time.monotonic()
        self.healthy_s: float | None = None
        python_path = [*(path or []), str(HOOKS), *([site] if site else []), *(absent_packages() if "EAGLE" in flags else [])]
        command = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(model / "target"), "--load-format",
                   "dummy", "--skip-tokenizer-init", "--attention-backend", "triton", "--sampling-backend", "pytorch",
                   "--page-size", "1", "--skip-server-warmup", "--disable-shared-experts-fusion", "--context-length",
                   "131072", "--random-seed", "1", "--enable-metrics", "--port", str(port), *flags]
        self.command = command
        with open(log, "wb") as file:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
                env={**{k: v for k, v in os.environ.items() if not k.startswith("KDTREE_")}, **_FIXED,
                     **(environ or {}), "PYTHONPATH": ":".join(python_path)})

    def wait_healthy(self, seconds: float) -> "Server":
        """Errors: RuntimeError with the end of the log if it ends or the time passes."""
        deadline = time.monotonic() + seconds
        while not load.healthy(self.url):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.name}: not healthy, exit status {self.process.poll()}\n{self.log[-6000:]}")
            time.sleep(0.5)
        self.healthy_s = round(time.monotonic() - self.started, 1)
        return self

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def capture_s(self) -> float | None:
        """Seconds that SGLang says it took to capture the target's verify graphs; None = it captured none."""
        found = _CAPTURE.findall(self.log)
        return float(found[-1]) if found else None

    def flush(self) -> None:
        load.post(self.url, "/flush_cache", {})

    def close(self) -> None:
        """Kills its process group, and waits until it is gone."""
        deadline = time.monotonic() + CLOSE_S
        while time.monotonic() < deadline:
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                return
            self.process.poll()
            time.sleep(0.1)
