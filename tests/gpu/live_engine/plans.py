# SPDX-License-Identifier: Apache-2.0
"""Which servers are started and which stages run on them, in the order of what is wanted most."""
import threading
from concurrent.futures import ThreadPoolExecutor

from . import agree, speed, switch
from .context import Context
from .model import write_model
from .orders import Orders
from .server import Server, dflash, ngram

START_S = 300.0
SEED = {"KDTREE_TEST_WEIGHTS": "1"}
FLAGS = ["--cuda-graph-bs-decode", "1", "4", "16", "--max-running-requests", "16", "--mem-fraction-static", "0.85",
         "--max-total-tokens", "330000"]
CEILING = {**SEED, "KDTREE_TEST_CEILING": "1", "KDTREE_TEST_SKIP_PREFILL": "1"}
SKIP_BEYOND = 66_000  # prefill attention of the longest prompt is left out beyond: 128k would take minutes


def start_all(context: Context, starts: dict) -> dict[str, Server]:
    """Starts servers side by side (name -> function that starts it) and waits for all; one that fails is left out."""
    def bring(name: str) -> Server | None:
        server = None
        try:
            server = starts[name]()
            return server.wait_healthy(START_S)
        except Exception as error:
            context.failed.append(f"start {name}")
            context.say(f"{name} did not start: {str(error)[-3000:]}")
            if server is not None:
                server.close()
            return None

    with ThreadPoolExecutor(len(starts)) as pool:
        up = dict(zip(starts, pool.map(bring, starts)))
    for name, server in up.items():
        if server is not None:
            context.say(f"{name} healthy after {server.healthy_s} s, captured in {server.capture_s()} s")
    return {name: server for name, server in up.items() if server is not None}


def starts_of(context: Context, servers: dict[str, Server]) -> dict:
    return {name: {"healthy_s": s.healthy_s, "capture_s": s.capture_s()} for name, s in servers.items()}


def plan_speed(context: Context) -> None:
    """The table of NGRAM trees, live switches, tokens and logits of off and on."""
    model = write_model(context.work / "model", context.layers, 8 * context.tp)
    orders = Orders(context.work / "orders.json")
    flags, built = [*ngram(), *FLAGS], threading.Event()

    def armed() -> Server:
        built.wait()
        return context.server("armed", model, flags, "off", {
            **SEED, **orders.environ(), "KDTREE_TEST_SKIP_PREFILL": str(SKIP_BEYOND)})

    def build() -> None:
        try:
            context.stage("build", context.make_release)
            context.say("kernel built")
        finally:
            built.set()

    builder = threading.Thread(target=build)
    builder.start()
    servers = start_all(context, {
        "ceiling": lambda: context.server("ceiling", model, flags, "", CEILING),
        "unpatched": lambda: context.server("unpatched", model, flags, "", SEED),
        "armed": armed})
    builder.join()
    context.record.put("starts_side_by_side", starts_of(context, servers))
    try:
        _speed_stages(context, servers, orders)
    finally:
        for server in servers.values():
            server.close()


def _speed_stages(context: Context, servers: dict[str, Server], orders: Orders) -> None:
    ranks = context.tp

    def rows(name: str, unpatched: bool = False) -> None:
        if "ceiling" in servers:
            context.stage(f"ceiling {name}",
                          lambda: speed.other_server(context.record, "ngram", name, servers["ceiling"], "ceiling"))
        if "armed" in servers:
            context.stage(f"modes {name}", lambda: speed.table_row(
                context.record, "ngram", name, servers["armed"], context.release, ranks))
        if unpatched and "unpatched" in servers:
            context.stage(f"unpatched {name}",
                          lambda: speed.other_server(context.record, "ngram", name, servers["unpatched"], "unpatched"))

    for name in ("1k", "4k", "16k"):
        rows(name, unpatched=True)
    rows("65k")
    if "unpatched" in servers:
        servers.pop("unpatched").close()
    if "armed" not in servers:
        return
    armed, release, folder = servers["armed"], context.release, context.work
    context.stage("switch", lambda: switch.latency(armed, release, ranks), "live_switch")
    context.stage("greedy", lambda: agree.greedy(armed, release, orders, folder, ranks), "greedy_tokens")
    context.stage("forced", lambda: agree.forced(armed, release, orders, folder, ranks), "forced_logits")
    for name in ("4x16k", "16x4k", "128k"):
        rows(name)
    context.record.put("prefill_attention_skipped_beyond", SKIP_BEYOND)
    context.record.put("ranks", [
        {k: v for k, v in rank.items() if k not in ("sections", "handed_back") and not isinstance(v, bytes)}
        for rank in release.ranks()])


def plan_dflash(context: Context) -> None:
    """Chain drafts of a draft model."""
    model = write_model(context.work / "model", context.layers, 8 * context.tp)
    flags = [*dflash(model), *FLAGS]
    context.stage("build", context.make_release)
    servers = start_all(context, {
        "ceiling-dflash": lambda: context.server("ceiling-dflash", model, flags, "", CEILING),
        "armed-dflash": lambda: context.server("armed-dflash", model, flags, "off", SEED)})
    context.record.put("starts_side_by_side_dflash", starts_of(context, servers))
    try:
        for name in ("1k", "16k", "65k"):
            if "ceiling-dflash" in servers:
                context.stage(f"ceiling {name}", lambda: speed.other_server(
                    context.record, "dflash", name, servers["ceiling-dflash"], "ceiling"))
            if "armed-dflash" in servers:
                context.stage(f"modes {name}", lambda: speed.table_row(
                    context.record, "dflash", name, servers["armed-dflash"], context.release, context.tp))
    finally:
        for server in servers.values():
            server.close()


PLANS = {"speed": plan_speed, "dflash": plan_dflash}
