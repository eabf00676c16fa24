# SPDX-License-Identifier: Apache-2.0
"""How long a live switch takes, with a request in flight: until every rank reports it, and until steps show it."""
import statistics
import threading
import time

from . import load
from .release import Release
from .server import Server

CONTEXT = 4000  # off and on differ by far more than steps vary
ROUNDS = 4
DWELL_S = 0.7


def seen_after(seen: list[tuple[float, int, int]], when: float, fast: bool, threshold: float) -> float | None:
    """Seconds from `when` until the first step that is fast (or slow) began; None = none was. threshold: s a step."""
    for (t0, s0, _), (t1, s1, _) in zip(seen, seen[1:]):
        if t1 > when and s1 > s0 and ((t1 - t0) / (s1 - s0) < threshold) == fast:
            return max(0.0, t0 - when)
    return None


def latency(server: Server, release: Release, ranks: int = 1) -> dict:
    """off -> validate -> on -> off, ROUNDS times, during one request of CONTEXT tokens."""
    enough, runs = load.Enough(1), []
    prompt = load.prompt_ids(0, CONTEXT)
    release.switch("off", ranks)
    worker = threading.Thread(target=lambda: runs.append(load.generate(server.url, prompt, 60_000, enough)))
    worker.start()
    time.sleep(2)
    reported: list[tuple[str, float, float]] = []
    try:
        for _ in range(ROUNDS):
            for mode in ("validate", "on", "off"):
                start = time.monotonic()
                reported.append((mode, start, release.switch(mode, ranks)))
                time.sleep(DWELL_S)
    finally:
        enough.stop()
        worker.join()
    seen = runs[0].seen
    rates = [(t1 - t0) / (s1 - s0) for (t0, s0, _), (t1, s1, _) in zip(seen, seen[1:]) if s1 > s0]
    threshold = (min(rates) * max(rates)) ** 0.5
    steps = [seen_after(seen, start, mode == "on", threshold) for mode, start, _ in reported if mode != "validate"]
    known = [s for s in steps if s is not None]
    all_ms = [1000 * seconds for _, _, seconds in reported]
    return {"switches": len(reported), "context": CONTEXT, "ranks": ranks,
            "reported_by_all_ranks_ms": {"median": round(statistics.median(all_ms), 1), "max": round(max(all_ms), 1)},
            "seen_in_steps_ms": {"switches": len(known), "median": round(1000 * statistics.median(known), 1),
                                 "max": round(1000 * max(known), 1)} if known else None,
            "steps_of_the_request": seen[-1][1], "tokens": seen[-1][2]}
