# SPDX-License-Identifier: Apache-2.0
"""Milliseconds a verify step and tokens a second, by mode, context and batch."""
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from . import load
from .records import Record
from .release import Release
from .server import Server


@dataclass(frozen=True)
class Shape:
    """steps: verify steps that are timed in off, validate and, where they are short, more in on and at the ceiling."""

    context: int
    batch: int = 1
    steps: int = 16
    validate: bool = True
    again: bool = True


SHAPES = {"1k": Shape(1000, steps=60), "4k": Shape(4000, steps=40), "16k": Shape(16000, steps=16),
          "65k": Shape(65000, steps=8), "128k": Shape(128000, steps=5, validate=False, again=False),
          "4x16k": Shape(16000, 4, steps=12), "16x4k": Shape(4000, 16, steps=16)}
FAST_STEPS = 100  # timed where a step takes milliseconds
COST_ROUNDS = 3


def prompts(shape: Shape) -> list[list[int]]:
    """Request i of every shape begins alike, so a radix cache serves shorter prefixes of longer ones."""
    return [load.prompt_ids(i, shape.context) for i in range(shape.batch)]


def room(shape: Shape, steps: int) -> int:
    """Tokens enough for that many steps at any acceptance, and for requests that wait for each other."""
    return 9 * (steps + load.SETTLE_STEPS + 6) * (1 if shape.batch == 1 else 3)


def measure(server: Server, shape: Shape, steps: int) -> dict[str, float]:
    """One timing of what is in force; the prompts should be cached already."""
    runs = load.together(server.url, prompts(shape), room(shape, steps), steps=steps + load.SETTLE_STEPS)
    timed = load.step_time(runs)
    timed["accept"] = round(sum(r.accept_length or 0 for r in runs) / len(runs), 2)
    return timed


def warm(server: Server, shape: Shape) -> float:
    """Prefill, and the n-gram corpus' first sight of the answer; seconds until the last request had its first token."""
    runs = load.together(server.url, prompts(shape), room(shape, FAST_STEPS), FAST_STEPS)
    return max(run.first_token_s for run in runs)


def table_row(record: Record, spec: str, name: str, server: Server, release: Release, count: int = 1) -> None:
    """off, validate, on and off again of one shape, from one process, live; each saved as soon as it is known."""
    shape = SHAPES[name]
    release.switch("on", count)
    warm(server, shape)
    for mode, column, wanted in (("off", "off", True), ("validate", "validate", shape.validate), ("on", "on", True),
                                 ("off", "off_again", shape.again)):
        wanted = wanted and not (spec == "dflash" and column in ("validate", "off_again"))
        if not wanted:
            continue
        release.switch(mode, count)
        time.sleep(0.3)
        timed = measure(server, shape, max(FAST_STEPS, shape.steps) if mode == "on" else shape.steps)
        put_row(record, spec, shape, column, timed)
    release.switch("on", count)


def prefill(servers: list[Server], shape: Shape) -> dict[str, float]:
    """The shape's prompts into the caches of all servers at once; seconds until each had its first token."""
    def one(server: Server) -> float:
        return max(run.first_token_s for run in load.together(server.url, prompts(shape), 9, 1))

    with ThreadPoolExecutor(len(servers)) as pool:
        return dict(zip((s.name for s in servers), (round(s, 2) for s in pool.map(one, servers))))


def armed_cost(armed: Server, unpatched: Server, release: Release, names: tuple[str, ...], count: int = 1) -> dict:
    """By shape: milliseconds a step of the armed server in off and of one without kdtree, by turns; what being armed costs,
    in per cent of a step, from the medians."""
    release.switch("off", count)
    found: dict = {}
    for name in names:
        shape, times = SHAPES[name], {"off_ms": [], "unpatched_ms": []}
        for server in (armed, unpatched):
            measure(server, shape, load.SETTLE_STEPS + 2)
        for _ in range(COST_ROUNDS):
            for column, server in (("off_ms", armed), ("unpatched_ms", unpatched)):
                times[column].append(measure(server, shape, shape.steps)["ms"])
        off, without = (statistics.median(values) for values in times.values())
        found[name] = {**times, "cost_us": round(1000 * (off - without)), "cost_percent": round(100 * (off / without - 1), 2)}
    return found


def put_row(record: Record, spec: str, shape: Shape, column: str, timed: dict[str, float]) -> None:
    record.point(spec, shape.batch, shape.context, **{
        f"{column}_ms": timed["ms"], f"{column}_tok_s": timed["tok_s"], f"{column}_steps": timed["steps"],
        f"{column}_accept": timed["accept"]})
    print(f"{spec:7} batch {shape.batch:2} context {shape.context:6} {column:10} {timed['ms']:9.2f} ms/step "
          f"{timed['tok_s']:8.1f} tok/s  accept {timed['accept']:.2f}, {timed['steps']:.0f} steps", flush=True)


def other_server(record: Record, spec: str, name: str, server: Server, column: str) -> None:
    """The same shape on a server whose kernel never changes: the ceiling, or one without kdtree."""
    shape = SHAPES[name]
    warm(server, shape) if column == "ceiling" else measure(server, shape, load.SETTLE_STEPS + 2)
    put_row(record, spec, shape, column, measure(server, shape, FAST_STEPS if column == "ceiling" else shape.steps))
