# SPDX-License-Identifier: Apache-2.0
"""Do off and on say the same? Greedy tokens, and logits along a forced text; beside it Triton against itself with another
batch size, which is what a difference has to be measured by."""
from collections.abc import Sequence
from pathlib import Path

import numpy

from . import load
from .orders import Orders
from .release import Release
from .server import Server

LENGTHS = (64, 200, 500, 1000, 1000, 2000, 3000, 4000)
TOKENS = 96
TEMPERATURES = (0.3, 0.7)
FORCED_PROMPT, FORCED_TOKENS = 3000, 1500
Steps = list[dict[str, numpy.ndarray]]


def read_steps(path: Path) -> Steps:
    """What recorder.py saved, step by step."""
    steps: dict[int, dict[str, numpy.ndarray]] = {}
    with numpy.load(path) as arrays:
        for key in arrays.files:
            index, name = key.split("/")
            steps.setdefault(int(index), {})[name] = arrays[key]
    return [steps[i] for i in sorted(steps)]


def best_after(steps: Steps, text: Sequence[int]) -> tuple[list[int], list[float]] | None:
    """Best ids and logits at the node that ends `text`, with all its ancestors on `text`; None = never computed."""
    want = numpy.asarray(text)
    last = len(want) - 1
    for step in steps:
        positions, tokens = step["positions"], step["tokens"]
        same = (positions <= last) & (tokens == want[numpy.minimum(positions, last)])
        whole = ~(step["trees"] & ~same[:, None, :]).any(-1)
        for request, node in zip(*numpy.nonzero(whole & (positions == last))):
            return step["ids"][request, node].tolist(), step["values"][request, node].tolist()
    return None


def first_difference(first: Sequence[int], second: Sequence[int]) -> int | None:
    """Index of the first token that differs; None = equal as far as both go."""
    return next((i for i, (a, b) in enumerate(zip(first, second)) if a != b), None)


def describe_difference(prompt: Sequence[int], one: Sequence[int], other: Sequence[int], steps_one: Steps,
                        steps_other: Steps) -> dict | None:
    """Where two answers part, and by how little: margin = best minus second-best logit, in each run; moved = by how much
    the difference of these two candidates' logits changed between the runs. None = they are equal."""
    at = first_difference(one, other)
    if at is None:
        return None
    text = [*prompt, *one[:at]]
    found: dict = {"token": at, "position": len(text), "ids": [one[at], other[at]]}
    margins = []
    for name, steps in (("first", steps_one), ("second", steps_other)):
        best = best_after(steps, text)
        if best is None:
            continue
        ids, values = best
        found[f"margin_{name}"] = round(values[0] - values[1], 6)
        if one[at] in ids and other[at] in ids:
            margins.append(values[ids.index(one[at])] - values[ids.index(other[at])])
    if len(margins) == 2:
        found["moved"] = round(abs(margins[0] - margins[1]), 6)
    return found


def logits_by_position(steps: Steps) -> dict[int, numpy.ndarray]:
    """Of a forced run: absolute position -> logits after the token there (the first time it was computed)."""
    found: dict[int, numpy.ndarray] = {}
    for step in steps:
        for position, logits in zip(step.get("kept_positions", ()), step.get("kept_logits", ())):
            found.setdefault(int(position), logits)
    return found


def divergence(a: numpy.ndarray, b: numpy.ndarray, temperature: float = 1.0) -> numpy.ndarray:
    """Nats by which what is sampled from b differs from what is sampled from a, row by row of [positions, vocabulary]."""
    log_a, log_b = (x / temperature - (x / temperature).max(-1, keepdims=True) for x in (a, b))
    log_a, log_b = (x - numpy.log(numpy.exp(x).sum(-1, keepdims=True)) for x in (log_a, log_b))
    return (numpy.exp(log_a) * (log_a - log_b)).sum(-1)


def compare_logits(one: dict[int, numpy.ndarray], other: dict[int, numpy.ndarray]) -> dict:
    """Both runs went along the same text. kl: nats, of `other` from `one`; a position where the best token differs is
    listed with its margin in `one`."""
    shared = sorted(one.keys() & other.keys())
    if not shared:
        raise ValueError("no position in common")
    a = numpy.stack([one[p] for p in shared]).astype(numpy.float64)
    b = numpy.stack([other[p] for p in shared]).astype(numpy.float64)
    delta = numpy.abs(a - b)
    kl = divergence(a, b)
    top = numpy.sort(a, -1)
    margin = top[:, -1] - top[:, -2]
    differs = a.argmax(-1) != b.argmax(-1)
    return {"positions": len(shared), "first": shared[0], "last": shared[-1],
            "logit_deviation": round(float(a.std(-1).mean()), 4),
            "margin_median": round(float(numpy.median(margin)), 4), "exact_ties": int((margin == 0).sum()),
            "max_abs": round(float(delta.max()), 5), "mean_abs": round(float(delta.mean()), 6),
            "p99_abs": round(float(numpy.quantile(delta, 0.99)), 5), "kl_mean": float(f"{kl.mean():.3g}"),
            "kl_max": float(f"{kl.max():.3g}"),
            "kl_mean_by_temperature": {str(t): float(f"{divergence(a, b, t).mean():.3g}") for t in TEMPERATURES},
            "best_differs": int(differs.sum()),
            "margins_where_best_differs": [round(float(m), 5) for m in margin[differs][:40]]}


def _recorded(server: Server, orders: Orders, folder: Path, name: str, prompts: list[list[int]], together: bool,
              text: Path | None = None, tokens: int = TOKENS) -> tuple[list[list[int]], Steps]:
    """Answers and recorded steps of all prompts, one after the other or all at once."""
    path = folder / f"{name}.npz"
    orders.give(server.url, record=str(path), **({"text": str(text)} if text else {}))
    if together:
        runs = load.together(server.url, prompts, tokens)
    else:
        runs = [load.generate(server.url, prompt, tokens) for prompt in prompts]
    orders.give(server.url)
    return [run.ids for run in runs], read_steps(path)


def greedy(server: Server, release: Release, orders: Orders, folder: Path, ranks: int = 1, tokens: int = TOKENS) -> dict:
    """Free-running greedy answers of off and on, and of off in batches of four."""
    prompts = [load.prompt_ids(100 + i, length) for i, length in enumerate(LENGTHS)]
    answers: dict[str, tuple[list[list[int]], Steps]] = {}
    for name, mode, together in (("on", "on", False), ("off", "off", False), ("off_batch", "off", True)):
        release.switch(mode, ranks)
        parts = [prompts[i:i + 4] for i in range(0, len(prompts), 4)] if together else [prompts]
        for part in parts:
            ids, steps = _recorded(server, orders, folder, f"greedy-{name}", part, together, tokens=tokens)
            before = answers.get(name, ([], []))
            answers[name] = before[0] + ids, before[1] + steps
    result: dict = {"prompts": len(prompts), "lengths": list(LENGTHS), "tokens_each": tokens,
                    "distinct_tokens": len({t for ids in answers["off"][0] for t in ids})}
    for name, other in (("on_against_off", "on"), ("triton_against_itself_in_batches_of_4", "off_batch")):
        parts = [describe_difference(p, a, b, answers["off"][1], answers[other][1])
                 for p, a, b in zip(prompts, answers["off"][0], answers[other][0])]
        result[name] = {"equal": parts.count(None), "differences": [p for p in parts if p]}
    return result


def forced(server: Server, release: Release, orders: Orders, folder: Path, tokens: int = FORCED_TOKENS,
           ranks: int = 1) -> dict:
    """Logits of both modes along one text, and of Triton with the same text four times in a batch."""
    text = load.prompt_ids(7, FORCED_PROMPT)
    whole = numpy.asarray(text + text[:tokens])
    path = folder / "text.npy"
    numpy.save(path, whole)
    runs: dict[str, dict[int, numpy.ndarray]] = {}
    for name, mode, copies in (("seen", "on", 1), ("on", "on", 1), ("off", "off", 1), ("off_batch", "off", 4)):
        release.switch(mode, ranks)
        _, steps = _recorded(server, orders, folder, f"forced-{name}", [text] * copies, copies > 1, path,
                             tokens - 1)
        runs[name] = logits_by_position(steps)
        (folder / f"forced-{name}.npz").unlink()
    return {"prompt": FORCED_PROMPT, "tokens": tokens, "on_against_off": compare_logits(runs["off"], runs["on"]),
            "on_against_itself": compare_logits(runs["seen"], runs["on"]),
            "triton_against_itself_in_a_batch_of_4": compare_logits(runs["off"], runs["off_batch"])}
