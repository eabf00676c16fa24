# SPDX-License-Identifier: Apache-2.0
"""One rank: a spawned process that loads its model, says it is ready and runs steps until it is told to stop."""
from __future__ import annotations

import importlib
import logging
import os
import random
import signal
import sys
import time
import traceback
from multiprocessing.connection import Connection

from serving import process
from serving.faults import Faults
from serving.flags import Flags
from serving.model_port import Model, Request, random_prompt
from serving.tree import VOCABULARY, accept, synthetic_answer

logger = logging.getLogger("test_engine.rank")

_SYNTHETIC_PROMPT, _SYNTHETIC_LENGTH = 24, 160  # tokens; longer synthetic requests are replaced
_CAPTURE_FAILED = ("Possible solutions:\n1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)\n"
                   "2. set --cuda-graph-max-bs to a smaller value (e.g., 16)")


def run_rank(flavour: str, flags: Flags, rank: int, launcher: int, rendezvous: int, pipe: Connection) -> None:
    """Entry point of the spawned process. `rendezvous` is a loopback port for the ranks' process group."""
    process.die_with_parent(launcher)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    prefix = (f" TP{rank}" if flags.ranks > 1 else "") + (f" EP{ep_rank(flags, rank)}" if flags.ep_size > 1 else "")
    process.set_title(f"sglang::scheduler{prefix.replace(' ', '_')}")
    process.configure_log(flags.log_level, prefix)
    try:
        module = importlib.import_module(f"{flavour}.model")
        module.load_plugins()
        faults = Faults(flags.fault)
        model: Model = module.make_model(flags, rank, rendezvous, faults)
        _load(model, flags, rank, faults)
        pipe.send({"status": "ready", **model.info()})
        _Loop(model, flags, rank, faults, pipe).run()
    except Exception:
        logger.error("Scheduler hit an exception: %s", traceback.format_exc())
        os.kill(launcher, signal.SIGQUIT)
        sys.exit(1)


def ep_rank(flags: Flags, rank: int) -> int:
    """Which expert-parallel rank `rank` is, in SGLang's order: EP ranks are blocks of ranks."""
    return rank * flags.ep_size // flags.ranks


def _load(model: Model, flags: Flags, rank: int, faults: Faults) -> None:
    logger.info("Init torch distributed begin.")
    started = time.monotonic()
    model.join()
    logger.info("Init torch distributed ends. elapsed=%.2f s, mem usage=%.2f GB", time.monotonic() - started, 1.0)
    logger.info("Load weight begin. avail mem=%.2f GB", 94.97)
    started = time.monotonic()
    _load_slowly(faults.number("slow_start", 30.0) or 0.0, rank)
    if faults.hits("crash_load", rank) is not None:
        raise RuntimeError("test engine: crash_load, as asked")
    limit = faults.number("oom", 0.0)
    if limit is not None and flags.mem_fraction_static > limit:
        raise sys.modules["torch"].OutOfMemoryError(
            f"CUDA out of memory. Tried to allocate 2.00 GiB. GPU {rank} has a total capacity of 94.97 GiB of which "
            "1.15 GiB is free. Including non-PyTorch memory, this process has 93.81 GiB memory in use. "
            "If reserved but unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to "
            "avoid fragmentation.")
    model.load()
    logger.info("Load weight end. elapsed=%.2f s, type=DeepseekV3ForCausalLM, avail mem=%.2f GB, mem usage=%.2f GB.",
                time.monotonic() - started, 21.0, 73.97)
    model.make_cache()
    logger.info("Memory pool end. avail mem=%.2f GB", 9.5)
    _capture(model, flags, rank, faults)
    if rank == 0:
        logger.info("max_total_num_tokens=%d, chunked_prefill_size=8192, max_prefill_tokens=16384, "
                    "max_running_requests=%d, context_len=%d, available_gpu_mem=%.2f GB",
                    model.info()["max_total_num_tokens"], flags.max_running_requests, 200_000, 5.0)


def _load_slowly(seconds: float, rank: int) -> None:
    """The fault slow_start: that long, with SGLang's bar of checkpoint shards."""
    shards = 10 if seconds > 0 else 0
    for shard in range(1, shards + 1):
        time.sleep(seconds / shards)
        if rank == 0:
            print(f"\rLoading safetensors checkpoint shards: {100 * shard // shards:3d}% Completed | {shard}/{shards} "
                  f"[00:00<00:00,  1.00it/s]", end="\n" if shard == shards else "", file=sys.stderr, flush=True)


def _capture(model: Model, flags: Flags, rank: int, faults: Faults) -> None:
    """Runs each batch size once. SGLang would capture a graph of it; here, eager as on its CPU device."""
    batches = sorted({min(b, flags.max_running_requests) for b in flags.graph_batches}, reverse=True)
    if flags.cuda_graph:
        logger.info("Capture target verify CUDA graph begin. backend=full, num_tokens_per_req=%d, bs=%s, "
                    "avail mem=%.2f GB", flags.draft_tokens, sorted(batches), 9.5)
    started = time.monotonic()
    for done, batch in enumerate(batches, 1):
        if faults.hits("crash_capture", rank) is not None and flags.cuda_graph:
            raise Exception("Capture cuda graph failed: test engine: crash_capture, as asked\n" + _CAPTURE_FAILED)
        model.warm_up(batch)
        if rank == 0 and flags.cuda_graph:
            _progress(batch, done, len(batches))
    if flags.cuda_graph:
        logger.info("Capture target verify CUDA graph end. elapsed=%.2f s, mem usage=%.2f GB, avail mem=%.2f GB.",
                    time.monotonic() - started, 0.5, 9.0)


def _progress(batch: int, done: int, total: int) -> None:
    """tqdm's bar as SGLang's capture shows it: rewritten in place, a line only at the end."""
    bar = "\u2588" * (10 * done // total)
    end = "\n" if done == total else ""
    print(f"\rCapturing batches (bs={batch} avail_mem=9.50 GB): {100 * done // total:3d}%|{bar:<10}| {done}/{total} "
          "[00:00<00:00,  9.99it/s]", end=end, file=sys.stderr, flush=True)


class _Loop:
    """Admits, steps, answers. Real requests go first; synthetic ones fill the idle time at the asked pace."""

    def __init__(self, model: Model, flags: Flags, rank: int, faults: Faults, pipe: Connection):
        self._model, self._flags, self._rank, self._faults, self._pipe = model, flags, rank, faults, pipe
        self._waiting: list[Request] = []
        self._running: list[Request] = []
        self._synthetic: list[Request] = []
        self._rest = 1.0 / model.busy_share - 1.0  # idle seconds for each second of synthetic work
        self._chance = random.Random(17)  # the same on every rank: all see the same synthetic tokens, as under TP
        self._next_step = time.monotonic()
        self._ready_at = time.monotonic()
        self._last_beat = 0.0
        self._steps = 0
        self._done = {"step_seconds": 0.0, "tokens": 0, "accepted": 0.0}  # sums over requests; tokens of the last step's requests

    def run(self) -> None:
        """Until a stop message or the launcher's end."""
        while self._receive():
            if self._faults_now():
                continue
            if self._admit():
                self._step(self._running)
                self._answer()
            elif self._flags.steps_per_second > 0 and time.monotonic() >= self._next_step:
                period, used = 1.0 / self._flags.steps_per_second, time.thread_time()
                self._step(self._synthetic_batch())
                used = time.thread_time() - used
                self._next_step = max(self._next_step + period, time.monotonic() + used * self._rest)
                self._beat()

    def _receive(self) -> bool:
        """Takes all messages; waits for one only while there is nothing to do. False = stop."""
        idle = not self._running and not self._waiting
        wait = 0.0
        if idle:
            wait = 0.2
            if self._flags.steps_per_second > 0:
                wait = max(0.0, min(wait, self._next_step - time.monotonic()))
        while self._pipe.poll(wait):
            try:
                message = self._pipe.recv()
            except EOFError:
                return False
            if message["op"] == "stop":
                return False
            if message["op"] == "generate":
                self._waiting.append(Request(message["id"], message["input_ids"], message["max_new_tokens"]))
            wait = 0.0
        return True

    def _faults_now(self) -> bool:
        """Faults of a rank in service. True = do nothing in this round."""
        for name in ("dead_rank", "dead_rank_unnoticed"):
            after = self._faults.hits(name, self._rank)
            if after is not None and time.monotonic() - self._ready_at >= float((after or ["0"])[0] or 0):
                os._exit(1)
        if self._faults.hits("stuck_rank", self._rank) is not None:
            time.sleep(0.05)
            return True
        return False

    def _admit(self) -> bool:
        """Prefills waiting requests while there is room. True = there are requests to step."""
        while self._waiting and len(self._running) < self._flags.max_running_requests:
            request = self._waiting.pop(0)
            request.output.append(self._model.prefill(request))
            if self._rank == 0:
                logger.info("Prefill batch, #new-seq: 1, #new-token: %d, #cached-token: 0, #running-req: %d, "
                            "#queue-req: %d, cuda graph: False", len(request.prompt), len(self._running),
                            len(self._waiting))
            self._running.append(request)
        self._answer()
        return bool(self._running)

    def _synthetic_batch(self) -> list[Request]:
        """A batch of one of the captured sizes, each request longer than at its last step."""
        size = min(self._chance.choice(self._flags.graph_batches), self._flags.max_running_requests)
        for request in [r for r in self._synthetic if len(r.prompt) + len(r.output) > _SYNTHETIC_LENGTH]:
            self._synthetic.remove(request)
            self._model.release(request)
        while len(self._synthetic) < size:
            prompt = random_prompt(self._chance, VOCABULARY, _SYNTHETIC_PROMPT)
            request = Request(-1, prompt, 1 << 30, synthetic=True)
            self._model.prefill(request)
            request.output.append(self._chance.randrange(VOCABULARY))
            self._synthetic.append(request)
        return self._chance.sample(self._synthetic, size)

    def _step(self, requests: list[Request]) -> None:
        """One verify step over `requests`."""
        began = time.monotonic()
        trees = [request.draft_tree(self._flags.draft_tokens) for request in requests]
        predicted = self._model.verify(requests, trees)
        if requests[0].synthetic:
            predicted = [synthetic_answer(tree, self._chance) for tree in trees]
        paths = []
        for request, tree, tokens in zip(requests, trees, predicted):
            path, bonus = accept(tree, tokens)
            request.output.extend([tree.tokens[node] for node in path[1:]] + [bonus])
            request.steps += 1
            paths.append(path)
        self._model.commit(requests, paths)
        self._steps += 1
        tokens = sum(map(len, paths))
        self._done["step_seconds"] += (time.monotonic() - began) * len(requests)
        self._done["tokens"] += tokens
        self._done["accepted"] = tokens / len(requests)
        if self._rank == 0 and self._steps % 40 == 0:
            logger.info("Decode batch, #running-req: %d, #token: %d, accept len: %.2f, cuda graph: False, #queue-req: %d",
                        len(requests), sum(len(r.prompt) + len(r.output) for r in requests),
                        sum(map(len, paths)) / len(paths), len(self._waiting))

    def _answer(self) -> None:
        """Sends off the requests that are done."""
        for request in [r for r in self._running if r.done]:
            self._running.remove(request)
            self._model.release(request)
            self._pipe.send({"id": request.id, "tokens": request.output[:request.max_new_tokens]})
        self._beat()

    def _beat(self) -> None:
        """Tells the launcher that this rank gets work done, at most five times a second."""
        if time.monotonic() - self._last_beat > 0.2:
            self._last_beat = time.monotonic()
            self._pipe.send({"id": -1, **self._done})
