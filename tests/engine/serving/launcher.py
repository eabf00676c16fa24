# SPDX-License-Identifier: Apache-2.0
"""The launcher: spawns the ranks and a detokenizer, watches them, serves HTTP, stops. SGLang's process model.

A rank that dies while loading, or later, ends the whole engine: the rank's own SIGQUIT or the watchdog's (0.5.17 has
one, a second between looks) makes the launcher kill all its children and itself with SIGKILL.
"""
from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from multiprocessing.connection import Connection
from types import FrameType
from typing import Iterator

from serving import process
from serving.faults import Faults
from serving.flags import Flags
from serving.http_api import make_server
from serving.rank import run_rank
from serving.tree import VOCABULARY

logger = logging.getLogger("test_engine.launcher")

_HEALTH_TIMEOUT_SECONDS = float(os.environ.get("SGLANG_HEALTH_CHECK_TIMEOUT", "20"))


def run_detokenizer(launcher: int, pipe: Connection) -> None:
    """A process that is no rank: it has the patch on its path and must stay as it is. Ends with the launcher."""
    process.die_with_parent(launcher)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    process.set_title("sglang::detokenizer")
    try:
        pipe.recv()
    except EOFError:
        pass


class RankPort:
    """One rank as the launcher sees it: its process, its pipe, its answers."""

    def __init__(self, rank: int, flavour: str, flags: Flags, rendezvous: int):
        spawn = multiprocessing.get_context("spawn")
        self.rank = rank
        self.progress: dict | None = None  # step_seconds, tokens, accepted; None before the first step
        self._pipe, theirs = spawn.Pipe()
        self.process = spawn.Process(target=run_rank, args=(flavour, flags, rank, os.getpid(), rendezvous, theirs))
        self.process.start()
        theirs.close()
        self.last_message = 0.0
        self._send_lock = threading.Lock()
        self._answers: dict[int, list[int]] = {}
        self._changed = threading.Condition()

    def wait_ready(self) -> dict[str, int]:
        """Blocks until the rank has loaded. RuntimeError, in SGLang's words, where it died."""
        while not self._pipe.poll(0.2):
            if not self.process.is_alive() and not self._pipe.poll(0):
                raise self._died()
        try:
            message = self._pipe.recv()
        except (EOFError, OSError):
            raise self._died() from None
        threading.Thread(target=self._listen, name=f"rank-{self.rank}", daemon=True).start()
        return message

    def _died(self) -> RuntimeError:
        self.process.join(10)
        return RuntimeError(f"Rank {self.rank} scheduler died during initialization (exit code: "
                            f"{self.process.exitcode}). If exit code is -9 (SIGKILL), a common cause is the OS OOM "
                            "killer. Run `dmesg -T | grep -i oom` to check.")

    def _listen(self) -> None:
        while True:
            try:
                message = self._pipe.recv()
            except (EOFError, OSError):
                return
            with self._changed:
                self.last_message = time.monotonic()
                if "tokens" in message and message["id"] < 0:
                    self.progress = message
                elif message["id"] >= 0:
                    self._answers[message["id"]] = message["tokens"]
                self._changed.notify_all()

    def send(self, message: dict) -> None:
        """Nothing happens where the rank is gone: whoever waits for its answer finds out."""
        try:
            with self._send_lock:
                self._pipe.send(message)
        except OSError:
            pass

    def wait_answer(self, request: int, deadline: float) -> list[int] | None:
        """This rank's tokens for a request, or None at the deadline (monotonic seconds)."""
        with self._changed:
            self._changed.wait_for(lambda: request in self._answers, max(0.0, deadline - time.monotonic()))
            return self._answers.pop(request, None)

    def wait_message(self, since: float, deadline: float) -> bool:
        """True once the rank has said anything after `since` (monotonic seconds)."""
        with self._changed:
            return self._changed.wait_for(lambda: self.last_message > since, max(0.0, deadline - time.monotonic()))


class Engine:
    """What the HTTP handlers ask."""

    def __init__(self, flags: Flags, ranks: list[RankPort], faults: Faults):
        self.flags, self.ranks, self.faults = flags, ranks, faults
        self.up = False
        self.stopping = threading.Event()
        self.aborted: set[str] = set()  # streamed requests that somebody called off
        self._next, self._lock = 0, threading.Lock()
        self._running = 0

    def generate(self, input_ids: list[int], max_new_tokens: int, timeout: float) -> list[int] | None:
        """Greedy tokens that depend on every rank's attention; None where a rank did not answer in `timeout` seconds.

        Each rank decodes with its own heads; token i of the answer is the sum of the ranks' tokens i.
        """
        with self._lock:
            request, self._next = self._next, self._next + 1
        deadline = time.monotonic() + timeout
        for rank in self.ranks:
            rank.send({"op": "generate", "id": request, "input_ids": input_ids, "max_new_tokens": max_new_tokens})
        answers = [rank.wait_answer(request, deadline) for rank in self.ranks]
        if any(answer is None for answer in answers):
            return None
        return [sum(tokens) % VOCABULARY for tokens in zip(*answers)]

    @contextlib.contextmanager
    def request(self) -> Iterator[bool]:
        """A request of a client while it is served; False where the engine takes no new ones."""
        with self._lock:
            taken = not self.stopping.is_set()
            self._running += taken
        try:
            yield taken
        finally:
            with self._lock:
                self._running -= taken

    def running(self) -> int:
        with self._lock:
            return self._running

    def healthy(self) -> bool:
        """As SGLang's /health: any work that gets done counts, else one token is generated. May block for 20 s."""
        if self.stopping.is_set() or not self.up or self.faults.get("unhealthy") is not None:
            return False
        if self.faults.get("never_healthy") is not None:
            return False
        while self.faults.get("hang") is not None:
            if self.stopping.wait(0.2):
                return False
        now = time.monotonic()
        if all(rank.last_message > now - 1.0 for rank in self.ranks):
            return True
        if self.generate([0], 1, _HEALTH_TIMEOUT_SECONDS) is not None:
            return True
        logger.error("Health check failed. Server couldn't get a response from detokenizer for last %d seconds.",
                     _HEALTH_TIMEOUT_SECONDS)
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def launch(flavour: str, flags: Flags) -> int:
    """Runs the engine until SIGTERM. Returns the exit status (0); on a child's death it ends by SIGKILL instead.

    flavour -- the package that holds the model: "heavy" or "light".
    """
    process.configure_log(flags.log_level)
    faults = Faults(flags.fault)
    logger.info("server_args=%s", flags)
    os.environ["TEST_ENGINE_DEVICE"] = flags.device
    children: list[multiprocessing.process.BaseProcess] = []
    stop = threading.Event()

    def kill_tree(signum: int, frame: FrameType | None) -> None:
        logger.error("Received sigquit from a child process. It usually means the child failed.")
        for child in children:
            if child.pid is not None and child.is_alive():
                os.kill(child.pid, signal.SIGKILL)
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGKILL)

    def on_sigterm(signum: int, frame: FrameType | None) -> None:
        logger.warning("SIGTERM received. signum=%d. Draining requests and shutting down...", signum)
        stop.set()

    signal.signal(signal.SIGQUIT, kill_tree)
    signal.signal(signal.SIGTERM, on_sigterm)
    signal.signal(signal.SIGINT, on_sigterm)

    spawn = multiprocessing.get_context("spawn")
    rendezvous = _free_port()
    ranks = []
    for rank in range(flags.ranks):
        ranks.append(RankPort(rank, flavour, flags, rendezvous))
        children.append(ranks[-1].process)
    detokenizer_pipe, theirs = spawn.Pipe()
    detokenizer = spawn.Process(target=run_detokenizer, args=(os.getpid(), theirs))
    detokenizer.start()
    children.append(detokenizer)
    engine = Engine(flags, ranks, faults)

    try:
        _wait_ready(ranks, stop)
    except RuntimeError as error:
        if not stop.wait(0.3):  # systemd ends ranks and launcher at the same moment
            logger.error("%s", error)
            kill_tree(signal.SIGQUIT, None)
    if not stop.is_set():
        threading.Thread(target=_watch, args=(children, faults, stop), name="subprocess-watchdog", daemon=True).start()
        server = make_server(engine)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()
        engine.generate([0, 1, 2], 4, _HEALTH_TIMEOUT_SECONDS)  # SGLang's warm-up request
        engine.up = True
        logger.info("The server is fired up and ready to roll!")
        while not stop.wait(3600):
            pass
    engine.stopping.set()
    _stop(engine, children, detokenizer_pipe)
    return 0


def _wait_ready(ranks: list[RankPort], stop: threading.Event) -> None:
    """Returns when every rank is ready or `stop` is set; the first rank that died ends it with its RuntimeError."""
    results: list[BaseException | None] = []
    done = threading.Condition()

    def wait_one(rank: RankPort) -> None:
        error: BaseException | None = None
        try:
            rank.wait_ready()
        except RuntimeError as caught:
            error = caught
        with done:
            results.append(error)
            done.notify_all()

    for rank in ranks:
        threading.Thread(target=wait_one, args=(rank,), daemon=True).start()
    while not stop.is_set():
        with done:
            done.wait(0.1)
            for error in results:
                if error is not None:
                    raise error
            if len(results) == len(ranks):
                return


def _watch(children: list, faults: Faults, stop: threading.Event) -> None:
    """SGLang's SubprocessWatchdog: a child that ended badly ends the engine, within a second."""
    while not stop.wait(1.0):
        if faults.get("dead_rank_unnoticed") is not None:
            continue
        for number, child in enumerate(children):
            if child.is_alive() or child.exitcode == 0:
                continue
            if stop.wait(0.3):
                return
            name = f"scheduler_{number}" if number < len(children) - 1 else "detokenizer"
            logger.error("Subprocess %s (pid=%d) crashed with exit code %d. Triggering SIGQUIT for cleanup...",
                         name, child.pid, child.exitcode)
            os.kill(os.getpid(), signal.SIGQUIT)
            return


def _stop(engine: Engine, children: list, detokenizer_pipe: Connection) -> None:
    """Orderly end: running requests finish, ranks are told, then killed two seconds later. The fault slow_stop waits first."""
    while engine.running() and all(child.is_alive() for child in children):
        logger.warning("Gracefully exiting... Remaining number of requests %d.", engine.running())
        time.sleep(0.2)
    delay = engine.faults.number("slow_stop", 120.0)
    if delay is not None:
        logger.warning("Gracefully exiting... Remaining number of requests 1.")
        time.sleep(delay)
    for rank in engine.ranks:
        rank.send({"op": "stop"})
    detokenizer_pipe.close()
    deadline = time.monotonic() + 2.0
    for child in children:
        child.join(max(0.0, deadline - time.monotonic()))
        if child.is_alive():
            child.kill()
            child.join()
