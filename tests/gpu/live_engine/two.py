# SPDX-License-Identifier: Apache-2.0
"""What wants more than one rank: both switch, both say the same, a rank that died is named, the load of each rank."""
import os
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


def check_load(found: dict, ep: int, host_rows: int, layers: int, top_k: int = 8) -> None:
    """All ranks saw the same; with EP the planted experts (0 to 7) are all on rank 0. Errors: RuntimeError."""
    expected = [layers * top_k * host_rows] + [0] * (ep - 1)
    for name, value in found.items():
        if value["by_expert_rank"] != expected or value["moe_ep_size"] != ep:
            raise RuntimeError(f"{name}: {value}, expected {expected}")


def dead_rank(context, server: Server, release: Release) -> dict:  # noqa: ANN001
    """A rank is killed: its file stays, its process is gone, the verdict names it. The engine dies of it."""
    victim = release.ranks()[-1]
    os.kill(victim["pid"], signal.SIGKILL)
    time.sleep(0.5)
    found = {"killed": victim["tp_rank"], "left": [r["tp_rank"] for r in release.ranks()]}
    if context.programs:
        found["kdtreectl_verdict"] = host.verdict(context)
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
        counted = orders.give(server.url, ranks)
        found = rank_load(release, per_rank=384 // ep)
        check_load(found, ep, counted["verify_rows"], layers=7)
        return found

    context.stage(f"{kind} router", router, f"router_{kind}")
    context.stage(f"{kind} compares", lambda: {
        f"rank {r['tp_rank']}": {k: r[k] for k in proofs.COUNTED if k in r} for r in release.ranks()},
        f"compares_{kind}")
    context.stage(f"{kind} greedy", lambda: agree.greedy(server, release, orders, folder, ranks, 48), f"greedy_{kind}")
    if context.programs and name == "armed":
        context.stage(f"{kind} agent", lambda: host.scrape(context, server), f"agent_scrape_{kind}")
    context.stage(f"{kind} dead rank", lambda: dead_rank(context, server, release), f"dead_rank_{kind}")
