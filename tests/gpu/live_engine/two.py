# SPDX-License-Identifier: Apache-2.0
"""What wants more than one rank: both switch, both say the same, a rank that lies or died is named, the load of each rank.

What each check expects stands in ../README.md."""
import os
import re
import signal
import time

from . import agree, host, load, proofs, switch
from .orders import Orders
from .release import Release
from .server import Server


def rank_load(release: Release, experts: int = 384, per_rank: int = 0) -> dict:
    """Assignments of all layers by expert rank, as each rank's own file has them. per_rank: experts a rank, 0 = unknown."""
    found = {}
    for rank in release.ranks():
        table = rank["sections"].get(1, [])
        share = per_rank or experts
        sums = [0] * (experts // share)
        for row in table:
            for expert, tokens in enumerate(row):
                sums[expert // share] += tokens
        found[f"rank {rank['tp_rank']}"] = {"moe_ep_rank": rank["moe_ep_rank"], "moe_ep_size": rank["moe_ep_size"],
                                            "gpu": rank["device_uuid"], "moe_tokens": rank["moe_tokens"],
                                            "by_expert_rank": sums}
    return found


def agents_load(scrape: str) -> dict[str, float]:
    """kdtree_moe_rank_tokens_total of the agent by TP rank."""
    return {rank: float(value) for rank, value in re.findall(r'^kdtree_moe_rank_tokens_total\{moe_rank="(\d+)"\} (\S+)$', scrape, re.M)}


def check_agent(scrape: str, tp: int, ep: int) -> dict:
    """Every GPU's utilisation, every rank, and load that is even at EP 1 and all on rank 0 at EP: the planted experts are there.
    Errors: RuntimeError."""
    gpus = re.findall(r'^kdtree_gpu_utilization_ratio\{gpu="(\d+)"', scrape, re.M)
    ranks = re.findall(r'^kdtree_rank_up\{rank="(\d+)"\} 1$', scrape, re.M)
    tokens = agents_load(scrape)
    if len(gpus) < tp or len(ranks) != tp or len(tokens) != tp:
        raise RuntimeError(f"of {tp}: GPUs {gpus}, ranks {ranks}, load {tokens}")
    even = len(set(tokens.values())) == 1
    skewed = tokens["0"] > 0 and not any(value for rank, value in tokens.items() if rank != "0")
    if not (even if ep == 1 else skewed):
        raise RuntimeError(f"EP {ep}: load by rank {tokens}")
    return {"gpus": len(gpus), "ranks": len(ranks), "rank_tokens": tokens}


def check_load(found: dict, ep: int, host_rows: int, layers: int, top_k: int = 8) -> None:
    """All ranks saw the same; with EP the planted experts (0 to 7) are all on rank 0. Errors: RuntimeError."""
    expected = [layers * top_k * host_rows] + [0] * (ep - 1)
    for name, value in found.items():
        if value["by_expert_rank"] != expected or value["moe_ep_size"] != ep:
            raise RuntimeError(f"{name}: {value}, expected {expected}")


def named_by_the_verdict(context, rank: int, kind: str) -> dict:  # noqa: ANN001
    """kdtreectl's verdict, in which this rank is of that kind, with its reason. Errors: RuntimeError."""
    said = host.verdict(context)
    rows = said["verdict"]["ranks"] if said["exit_status"] == 1 else []
    if not any(row["rank"] == rank and row["verdict"] == kind and row["reason"] for row in rows):
        raise RuntimeError(f"kdtreectl's verdict doesn't say that rank {rank} is {kind}: {said}")
    return said


def lying_rank(context, server: Server, release: Release, orders: Orders) -> dict:  # noqa: ANN001
    """The last rank's kernel alone is made wrong: its mismatches grow, nobody else's, and the verdict names it.
    Errors: RuntimeError."""
    liar = context.tp - 1
    release.switch("validate", context.tp)
    time.sleep(proofs.SETTLE_S)
    before = {rank["tp_rank"]: rank["mismatches"] for rank in release.ranks()}
    orders.give(server.url, context.tp, fault=1, fault_rank=liar)
    load.together(server.url, [load.prompt_ids(80, 5000)], 9 * 12, 12)
    time.sleep(proofs.SETTLE_S)
    grown = {rank["tp_rank"]: rank["mismatches"] - before[rank["tp_rank"]] for rank in release.ranks()}
    orders.give(server.url, context.tp, fault=0)
    if not grown.get(liar) or any(count for rank, count in grown.items() if rank != liar):
        raise RuntimeError(f"mismatches by rank: {grown}")
    found: dict = {"liar": liar, "mismatches_by_rank": grown}
    if context.programs:
        found["kdtreectl_verdict"] = named_by_the_verdict(context, liar, "mismatch")
    return found


def dead_rank(context, server: Server, release: Release) -> dict:  # noqa: ANN001
    """A rank is killed: its file stays, its process is gone, the verdict names it. The engine dies of it.
    Errors: RuntimeError."""
    victim = release.ranks()[-1]
    os.kill(victim["pid"], signal.SIGKILL)
    time.sleep(0.2)
    found = {"killed": victim["tp_rank"], "left": [r["tp_rank"] for r in release.ranks()]}
    if victim["tp_rank"] in found["left"]:
        raise RuntimeError(f"the killed rank still counts as living: {found}")
    if context.programs:
        said = host.verdict(context)
        (row,) = [row for row in said["verdict"]["ranks"] if row["rank"] == victim["tp_rank"]]
        if said["exit_status"] != 1 or not row["reason"]:
            raise RuntimeError(f"kdtreectl's verdict doesn't name rank {victim['tp_rank']}: {said}")
        found["kdtreectl_verdict"] = said
    return found


def prove(context, server: Server, orders: Orders, name: str, ep: int) -> None:  # noqa: ANN001
    """All of it on one server; the dead rank comes last."""
    release, ranks, kind = context.release_of(name), context.tp, f"tp{context.tp}_ep{ep}"
    folder = context.work / kind
    folder.mkdir(exist_ok=True)
    context.stage(f"{kind} switch", lambda: switch.latency(server, release, ranks), f"live_switch_{kind}")

    def router() -> dict:
        release.switch("validate", ranks)
        load.together(server.url, [load.prompt_ids(70 + i, 300) for i in range(3)], 100)
        time.sleep(proofs.SETTLE_S)
        for _ in range(3):  # a step that was on its way counts on one side first
            counted = orders.give(server.url, ranks)
            found = rank_load(release, per_rank=384 // ep)
            try:
                check_load(found, ep, counted["verify_rows"], layers=7)
                return found
            except RuntimeError as error:
                wrong = error
            time.sleep(proofs.SETTLE_S)
        raise wrong

    context.stage(f"{kind} router", router, f"router_{kind}")
    context.stage(f"{kind} compares", lambda: {
        f"rank {r['tp_rank']}": {k: r[k] for k in proofs.COUNTED if k in r} for r in release.ranks()},
        f"compares_{kind}")
    context.stage(f"{kind} greedy", lambda: agree.greedy(server, release, orders, folder, ranks, 48), f"greedy_{kind}")
    if context.programs:
        def scraped() -> dict:
            found = host.scrape(context, server, kind)
            return {**found, **check_agent((context.out / f"agent-{kind}.txt").read_text(), ranks, ep)}

        context.stage(f"{kind} agent", scraped, f"agent_scrape_{kind}")
    context.stage(f"{kind} lying rank", lambda: lying_rank(context, server, release, orders), f"lying_rank_{kind}")
    context.stage(f"{kind} dead rank", lambda: dead_rank(context, server, release), f"dead_rank_{kind}")
