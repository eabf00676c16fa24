# SPDX-License-Identifier: Apache-2.0
"""Greedy requests of token ids against a running server, and the time of each verify step as a client sees it."""
import json
import random
import threading
import time
import urllib.request
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from .model import VOCABULARY

TIMEOUT_S = 900
SETTLE_STEPS = 2  # of a request, before its time counts


@dataclass
class Run:
    """One request. seen: (monotonic seconds, verify steps done, tokens out) at each chunk of the answer until it was
    called off; verifies: what SGLang said at its end, None = it doesn't speculate."""

    seen: list[tuple[float, float, int]] = field(default_factory=list)
    verifies: int | None = None
    sent: float = 0.0
    ids: list[int] = field(default_factory=list)
    accept_length: float | None = None

    @property
    def first_token_s(self) -> float:
        return self.seen[0][0] - self.sent


def prompt_ids(seed: int, length: int) -> list[int]:
    """Random ids, the same for the same seed; a longer prompt begins with the shorter one."""
    rng = random.Random(seed)
    return [rng.randrange(10, VOCABULARY - 10) for _ in range(length)]


def post(url: str, path: str, body: object, timeout: float = 60.0) -> bytes:
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        return answer.read()


class Enough:
    """Ends requests that run together: once each of `count` has done `steps` verify steps, or stop() was called."""

    def __init__(self, count: int, steps: int = 0):
        self._lock, self._missing, self._steps = threading.Lock(), count, steps
        self._stopped = threading.Event()

    def stop(self) -> None:
        self._stopped.set()

    def reached(self, before: int, now: int) -> bool:
        """A request went from `before` to `now` steps; True: call it off."""
        if self._steps and before < self._steps <= now:
            with self._lock:
                self._missing -= 1
                if self._missing == 0:
                    self._stopped.set()
        return self._stopped.is_set()


def generate(url: str, ids: list[int], tokens: int, enough: Enough | None = None, temperature: float = 0.0) -> Run:
    """Streams one answer of `tokens` tokens (temperature 0 = greedy); the rest is called off when it is enough.
    Errors: OSError, ValueError for an answer that is not one."""
    rid = uuid.uuid4().hex
    body = dict(rid=rid, input_ids=ids, stream=True,
                sampling_params=dict(temperature=temperature, max_new_tokens=tokens, ignore_eos=True))
    request = urllib.request.Request(url + "/generate", json.dumps(body).encode(), {"Content-Type": "application/json"})
    run, aborted, chunks = Run(sent=time.monotonic()), False, -1
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as stream:
        for line in stream:
            if not line.startswith(b"data: {"):
                continue
            now, answer = time.monotonic(), json.loads(line[6:])
            if "error" in answer:
                raise ValueError(f"{url}: {answer['error']}")
            chunks += 1
            meta = answer["meta_info"]
            run.verifies = meta.get("spec_verify_ct", run.verifies)
            run.accept_length = meta.get("spec_accept_length", run.accept_length)
            if len(answer.get("output_ids") or ()) > len(run.ids):
                run.ids = answer["output_ids"]
            if aborted:
                continue
            run.seen.append((now, chunks, int(meta.get("completion_tokens") or len(run.ids))))
            if enough is not None and enough.reached(chunks - 1, chunks):
                aborted = True
                post(url, "/abort_request", {"rid": rid})
    count_steps(run, chunks)
    return run


def count_steps(run: Run, chunks: int) -> None:
    """SGLang counts the verify steps, and says so at the end alone; until then a chunk is a step, the first one prefill's.
    Where it put several steps into a chunk, steps are spread over the chunks."""
    if run.verifies and chunks > 0 and abs(run.verifies - chunks) > 2:
        run.seen = [(when, step * run.verifies / chunks, tokens) for when, step, tokens in run.seen]


def together(url: str, prompts: list[list[int]], tokens: int, steps: int = 0) -> list[Run]:
    """generate() for all prompts at once, until each has done `steps` verify steps (0 = all its tokens)."""
    enough = Enough(len(prompts), steps)
    with ThreadPoolExecutor(len(prompts)) as pool:
        return list(pool.map(lambda ids: generate(url, ids, tokens, enough), prompts))


def step_time(runs: list[Run]) -> dict[str, float]:
    """Of requests that ran together: milliseconds a verify step, tokens a second of all, over the time in which every
    one of them was past its first SETTLE_STEPS steps and none had ended. Errors: ValueError if that was no time."""
    start = max(next((t for t, done, _ in run.seen if done >= SETTLE_STEPS), float("inf")) for run in runs)
    end = min(run.seen[-1][0] for run in runs)
    per_step, rate, steps = [], 0.0, 0.0
    for run in runs:
        inside = [s for s in run.seen if start <= s[0] <= end]
        if len(inside) > 1:
            (t0, s0, n0), (t1, s1, n1) = inside[0], inside[-1]
            per_step.append(1000 * (t1 - t0) / (s1 - s0))
            rate += (n1 - n0) / (t1 - t0)
            steps = max(steps, s1 - s0)
    if not per_step:
        raise ValueError("the requests did not run long enough together")
    return {"ms": round(sum(per_step) / len(per_step), 3), "tok_s": round(rate, 1), "steps": round(steps)}


def healthy(url: str, timeout: float = 2.0) -> bool:
    try:
        with urllib.request.urlopen(url + "/health", timeout=timeout) as answer:
            return answer.status == 200
    except OSError:
        return False
