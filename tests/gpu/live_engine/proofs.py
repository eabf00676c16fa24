# SPDX-License-Identifier: Apache-2.0
"""What validate finds, and what must not disturb it: planted faults, padding, requests that come and go, captures again,
the router's counters and the order of KV slots."""
import random
import time
from concurrent.futures import ThreadPoolExecutor

from . import load
from .orders import Orders
from .release import BACK_NAMES, Release
from .server import Server

FAULTS = {1: "eight_ulp", 2: "prefix_only", 3: "mask_indptr", 4: "broken_capture"}  # hooks/kdtree_test_hooks/faults.py
COUNTED = ("compares", "mismatches", "max_ulp", "max_mean_ulp", "sum_mean_ulp", "max_abs", "worst_layer", "worst_request",
           "worst_batch", "worst_head", "worst_prefix", "longest_prefix")
TEMPERATURES = (0.3, 0.7, 1.0)
SETTLE_S = 0.6  # until a stats file holds what was done before


def counted(release: Release) -> dict:
    """Of rank 0, once its file has caught up."""
    time.sleep(SETTLE_S)
    rank = release.ranks()[0]
    return {name: rank[name] for name in COUNTED if name in rank}


def answered(release: Release) -> dict:
    """Verify calls of rank 0: by which kernel, and handed back by reason."""
    rank = release.ranks()[0]
    back = {name: count for name, count in zip(BACK_NAMES, rank["handed_back"]) if count}
    return {"calls_kernel": rank["calls_kernel"], "calls_engine": rank["calls_engine"], "handed_back": back}


def clean(release: Release) -> dict:
    """counted(), and compares by batch size. Errors: RuntimeError if there is a mismatch, or no compare."""
    found = {**counted(release), "batches": {size: n for size, (n, _) in release.ranks()[0]["batches"].items()}}
    if found["mismatches"] or not found["compares"]:
        raise RuntimeError(f"{found}")
    return found


def under_load(server: Server, release: Release, prompts: list[list[int]], steps: int = 12) -> dict:
    """Compares and mismatches that a few steps of these requests together brought, and the worst seen so far."""
    before = counted(release)
    load.together(server.url, prompts, tokens=9 * steps, steps=steps)
    after = counted(release)
    return {"requests": len(prompts), "prefix": len(prompts[0]), "compares": after["compares"] - before["compares"],
            "mismatches": after["mismatches"] - before["mismatches"],
            **{k: v for k, v in after.items() if k.startswith(("worst", "max"))}}


def faults(server: Server, release: Release, orders: Orders) -> dict:
    """Each fault is planted while graphs replay, and taken out again; eight_ulp also where it must not show. What was worst
    is forgotten in between."""
    release.switch("validate")
    short, long = load.prompt_ids(21, 1000), load.prompt_ids(22, 5000)
    other = load.prompt_ids(23, 1500)
    found = {"clean": under_load(server, release, [long])}
    for number, name in FAULTS.items():
        orders.give(server.url, fault=number, forget_worst=True)
        if name == "eight_ulp":
            found["eight_ulp_prefix_1000"] = under_load(server, release, [short])
        found[name] = under_load(server, release, [long, other] if name == "mask_indptr" else [long])
        orders.give(server.url, fault=0, forget_worst=True)
    found["clean_again"] = under_load(server, release, [long, other])
    for name, value in found.items():
        caught = value["mismatches"] > 0
        if caught != (name in FAULTS.values()):
            raise RuntimeError(f"{name}: {value['mismatches']} mismatches in {value['compares']} compares: {found}")
    return found


def coming_and_going(server: Server, release: Release, count: int = 14, at_once: int = 3,
                     temperatures: tuple[float, ...] = (0.0,)) -> dict:
    """Requests of mixed lengths that join and leave: batches of 1 to `at_once`, padded to captured sizes; temperatures go
    round."""
    release.switch("validate")
    before, rng = counted(release), random.Random(5)
    jobs = [(load.prompt_ids(300 + i, rng.choice((3, 17, 200, 900, 2500))), rng.choice((4, 20, 60)), None,
             temperatures[i % len(temperatures)]) for i in range(count)]
    with ThreadPoolExecutor(at_once) as pool:
        answers = list(pool.map(lambda job: load.generate(server.url, *job), jobs))
    after = counted(release)
    if after["mismatches"] != before["mismatches"] or after["compares"] == before["compares"]:
        raise RuntimeError(f"before {before}, after {after}")
    batches = release.ranks()[0]["batches"]
    return {"requests": len(answers), "tokens": sum(len(a.ids) for a in answers), "temperatures": list(temperatures),
            "max_ulp": after["max_ulp"], "max_mean_ulp": after["max_mean_ulp"],
            "compares": after["compares"] - before["compares"], "mismatches": 0, "batches": batches}


def recapture(server: Server, release: Release, orders: Orders, times: int = 5) -> dict:
    """Graphs captured again while the side thread reads and publishes every 0.2 s: a CUDA call of it would break them."""
    release.switch("validate")
    prompt = load.prompt_ids(24, 700)
    published = release.ranks()[0]["publications"]
    start = time.monotonic()
    answer = orders.give(server.url, recapture=times)
    seconds = time.monotonic() - start
    while_captured = release.ranks()[0]["publications"] - published
    after = under_load(server, release, [prompt])
    if after["mismatches"] or not after["compares"] or answer.get("recaptured") != times:
        raise RuntimeError(f"after {answer}: {after}")
    return {"captures": answer.get("recaptured"), "seconds": round(seconds, 2), "publications_meanwhile": while_captured,
            "compares_after": after["compares"], "mismatches_after": 0}


def _router_once(server: Server, release: Release, orders: Orders, experts: range, top_k: int) -> tuple[bool, dict]:
    time.sleep(SETTLE_S)
    host = orders.give(server.url)
    rank = release.ranks()[0]
    sections = rank["sections"]
    inside = {sum(row[e] for e in experts) for row in sections[1]}
    outside = sum(map(sum, sections[1])) - sum(sum(row[e] for e in experts) for row in sections[1])
    unique = {round(u[0] / max(s[0], 1), 6) for u, s in zip(sections[2], sections[3])}
    right = (rank["moe_tokens"] == host["verify_rows"] and rank["moe_steps"] == host["verify_forwards"]
             and inside == {top_k * host["verify_rows"]} and outside == 0 and unique == {float(len(experts))})
    return right, {
        "host_verify_forwards": host["verify_forwards"], "host_verify_rows": host["verify_rows"],
        "moe_steps": rank["moe_steps"], "moe_tokens": rank["moe_tokens"], "layers": rank["moe_layers"],
        "experts": rank["moe_experts"], "assignments_a_layer": sorted(inside), "to_other_experts": outside,
        "unique_experts_a_step": sorted(unique)}


def router(server: Server, release: Release, orders: Orders, experts: range, top_k: int = 8) -> dict:
    """The observer's counts against what the host counted, where the router sends every token to `experts`."""
    release.switch("on")
    load.together(server.url, [load.prompt_ids(400 + i, 50 + 40 * i) for i in range(3)], 120)
    for _ in range(3):  # a step that was on its way counts on one side first
        right, result = _router_once(server, release, orders, experts, top_k)
        if right:
            return result
    raise RuntimeError(f"the observer and the host disagree: {result}")


def churn(server: Server, release: Release, requests: int = 64) -> dict:
    """How many neighbouring KV slots of a later request follow each other, after requests of mixed lengths that take more
    slots than the pool has have come and gone; from the counters that the agent exports."""
    rng = random.Random(9)
    jobs = [(load.prompt_ids(500 + i, rng.randrange(20, 800)), rng.randrange(20, 120)) for i in range(requests)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda job: load.generate(server.url, *job), jobs))
    time.sleep(SETTLE_S)
    before = release.ranks()[0]
    load.generate(server.url, load.prompt_ids(599, 6000), 300)
    time.sleep(SETTLE_S)
    after = release.ranks()[0]
    pairs = after["kv_pairs"] - before["kv_pairs"]
    follow = after["kv_contiguous_pairs"] - before["kv_contiguous_pairs"]
    if pairs == 0:
        raise RuntimeError("no KV slots were looked at")
    return {"sort_state": after["sort_state"], "pairs": pairs, "contiguous": round(follow / pairs, 4)}
