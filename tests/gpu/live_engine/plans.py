# SPDX-License-Identifier: Apache-2.0
"""Which servers are started and which stages run on them, in the order of what is wanted most."""
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from . import agree, host, observer_cost, proofs, speed, switch, two
from .context import Context, gpu_facts
from .model import write_model
from .orders import Orders
from .server import Server, dflash, eagle, ngram

START_S = 300.0
TOKENS_S = 150.0  # of the plan tokens, with its start
ACCEPT = 4  # tokens a verify step, the same on every server that is timed: SGLang's own benchmark setting
SKIP_BEYOND = 20_000  # prefix at which prefill attention is left out: with it 65k takes 37 s, 128k minutes
WEIGHTS = {"KDTREE_TEST_WEIGHTS": "1"}
TIMED = {**WEIGHTS, "KDTREE_TEST_SKIP_PREFILL": str(SKIP_BEYOND), "SGLANG_SIMULATE_ACC_LEN": str(ACCEPT),
         "SGLANG_SIMULATE_UNIFORM_EXPERTS": "1"}
CEILING = {**TIMED, "KDTREE_TEST_CEILING": "1", "KDTREE_TEST_SKIP_PREFILL": "1"}
FLAGS = ["--cuda-graph-bs-decode", "1", "4", "16", "--max-running-requests", "16", "--mem-fraction-static", "0.85",
         "--max-total-tokens", "150000"]
TABLE_SERVERS, SMALL_SERVERS = ("ceiling", "unpatched", "armed", "chain"), ("proof", "eager")
PROOF_LAYERS, SKEW = 8, "0-7"
PROOF_FLAGS = ["--cuda-graph-bs-decode", "1", "2", "4", "--max-running-requests", "4", "--mem-fraction-static", "0.85",
               "--max-total-tokens", "24000", "--disable-radix-cache"]
EAGER = ["--cuda-graph-backend-decode=disabled"]


def start_all(context: Context, starts: dict) -> dict[str, Server]:
    """Starts servers side by side (name -> function that starts it) and waits for all; one that fails is left out."""
    def bring(name: str) -> Server | None:
        server = None
        try:
            server = starts[name]()
            server.wait_healthy(START_S)
            context.say(f"{name} healthy after {server.healthy_s} s, captured in {server.capture_s()} s")
            return server
        except Exception as error:
            context.failed.append(f"start {name}")
            context.say(f"{name} did not start: {str(error)[-3000:]}")
            if server is not None:
                server.close()
            return None

    with ThreadPoolExecutor(len(starts)) as pool:
        up = dict(zip(starts, pool.map(bring, starts)))
    servers = {name: server for name, server in up.items() if server is not None}
    context.record.add("starts_side_by_side", **{
        name: {"healthy_s": s.healthy_s, "capture_s": s.capture_s()} for name, s in servers.items()})
    return servers


class Plan:
    """The servers of one run. Each armed server has a root of its own: they must not follow one control file."""

    def __init__(self, context: Context):
        self.context = context
        self.built = threading.Event()
        self.servers: dict[str, Server] = {}
        self.orders = {name: Orders(context.work / f"orders-{name}.json") for name in ("proof", "eager", "tokens", "eagle", "eagle_eager")}
        self.model = write_model(context.work / "model", context.layers, 8 * context.tp)
        self.small = write_model(context.work / "small", PROOF_LAYERS, 8 * context.tp, 384)

    def build(self) -> None:
        try:
            self.context.stage("build", self.context.make_release)
        finally:
            self.built.set()

    def build_and_start(self, names: Sequence[str]) -> None:
        builder = threading.Thread(target=self.build)
        builder.start()
        self.start(names)
        builder.join()

    def start(self, names: Sequence[str]) -> None:
        """Starts these servers; those with kdtree wait for build()."""
        self.servers |= start_all(self.context, {name: getattr(self, "start_" + name) for name in names})

    def start_ceiling(self) -> Server:
        return self.context.server("ceiling", self.model, [*ngram(), *FLAGS], hooks=CEILING)

    def start_unpatched(self) -> Server:
        return self.context.server("unpatched", self.model, [*ngram(), *FLAGS], hooks=TIMED)

    def start_armed(self) -> Server:
        self.built.wait()
        return self.context.server("armed", self.model, [*ngram(), *FLAGS], "off",
                                   TIMED)

    def start_chain(self) -> Server:
        self.built.wait()
        return self.context.server("chain", self.model, [*dflash(self.model), *FLAGS], "off",
                                   TIMED)

    def start_proof(self) -> Server:
        self.built.wait()
        return self.context.server("proof", self.small, [*ngram(), *PROOF_FLAGS], "validate", {
            **WEIGHTS, **self.orders["proof"].environ(), "KDTREE_TEST_SKEW": SKEW, "KDTREE_TEST_FAULTS": "1"})

    def start_eager(self) -> Server:
        self.built.wait()
        return self.context.server("eager", self.small, [*ngram(), *PROOF_FLAGS, *EAGER], "validate", {
            **WEIGHTS, **self.orders["eager"].environ(), "KDTREE_DEFRAG_SORT": "0"}, entry_point=True)

    def start_eagle(self, name: str = "eagle", more: Sequence[str] = ()) -> Server:
        self.built.wait()
        return self.context.server(name, self.small, [*eagle(), *PROOF_FLAGS, *more], "validate", {
            **WEIGHTS, **self.orders[name].environ(), "SGLANG_ENABLE_JIT_DEEPGEMM": "0"})

    def start_eagle_eager(self) -> Server:
        return self.start_eagle("eagle_eager", EAGER)

    def start_tokens(self) -> Server:
        self.built.wait()
        return self.context.server("tokens", self.model, [*ngram(), *FLAGS], "off",
                                   {**WEIGHTS, **self.orders["tokens"].environ()})

    # stages

    def rows(self, name: str, column_of: dict[str, str], needs_s: float) -> None:
        """One shape on the servers that are up; column_of: server -> column, "modes" for all modes of an armed one."""
        context = self.context
        for server, column in column_of.items():
            spec = "dflash" if server == "chain" else "ngram"
            if server not in self.servers or not context.wants(spec, name):
                continue
            running = self.servers[server]
            if column == "modes":
                context.stage(f"{server} {name}", lambda: speed.table_row(
                    context.record, spec, name, running, context.release_of(server), context.tp), needs_s=needs_s)
            else:
                context.stage(f"{server} {name}", lambda: speed.other_server(
                    context.record, spec, name, running, column), needs_s=needs_s)

    def prove(self) -> None:
        """All that is to be done on the small servers that are up; nothing is timed."""
        parts = [threading.Thread(target=part) for part in (self.prove_captured, self.prove_eager)]
        for part in parts:
            part.start()
        for part in parts:
            part.join()
        self.close("proof", "eager")

    def prove_captured(self) -> None:
        if "proof" not in self.servers:
            return
        stage, folder = self.context.stage, self.context.work / "proof"
        server, release, orders = self.servers["proof"], self.context.release_of("proof"), self.orders["proof"]
        folder.mkdir(exist_ok=True)
        first, last = map(int, SKEW.split("-"))
        stage("router", lambda: proofs.router(server, release, orders, range(first, last + 1)), "router_counts")
        stage("coming", lambda: proofs.coming_and_going(server, release), "coming_and_going")
        stage("faults", lambda: proofs.faults(server, release, orders), "planted_faults")
        stage("recapture", lambda: proofs.recapture(server, release, orders), "captures_again")
        stage("temperatures", lambda: proofs.coming_and_going(server, release, temperatures=proofs.TEMPERATURES),
              "temperatures")
        stage("churn", lambda: self.churn("proof"), "kv_churn_sorted")
        stage("greedy", lambda: agree.greedy(server, release, orders, folder), "greedy_tokens_8_layers", 25)
        stage("forced", lambda: agree.forced(server, release, orders, folder, 600), "forced_logits_8_layers", 25)

    def prove_eager(self) -> None:
        if "eager" not in self.servers:
            return
        server, release = self.servers["eager"], self.context.release_of("eager")
        self.context.stage("eager", lambda: proofs.coming_and_going(server, release), "eager_by_entry_point")
        self.context.stage("churn unsorted", lambda: self.churn("eager"), "kv_churn_unsorted")

    def churn(self, name: str) -> dict:
        """proofs.churn, and what the agent exports of it."""
        context, release = self.context, self.context.release_of(name)
        found = proofs.churn(self.servers[name], release)
        if context.programs:
            found["exported"] = host.exported(context, release, "kdtree_kv_contiguous_ratio")
        return found

    def close(self, *names: str) -> None:
        for name in names or list(self.servers):
            if name in self.servers:
                self.servers.pop(name).close()


def measure_table(plan: Plan) -> None:
    """All that is timed, on the servers that are up; the small ones are idle meanwhile."""
    context, servers = plan.context, plan.servers
    up = [servers[name] for name in ("ceiling", "unpatched", "armed") if name in servers]
    if up and context.wants("ngram", "65k"):
        context.stage("prefill", lambda: speed.prefill(up, speed.SHAPES["65k"]), "prefill_65k_s_side_by_side", 20)
    for name, needs in (("16k", 30), ("65k", 60), ("1k", 20), ("4k", 25)):
        plan.rows(name, {"ceiling": "ceiling", "armed": "modes", "unpatched": "unpatched"}, needs)
    if "armed" in servers:
        armed, release = servers["armed"], context.release_of("armed")
        context.stage("switch", lambda: switch.latency(armed, release, context.tp), "live_switch", 16)
        if context.programs:
            context.stage("agent", lambda: host.scrape(context, armed), "agent_scrape", 10)
        if "unpatched" in servers:
            context.stage("armed cost", lambda: speed.armed_cost(
                armed, servers["unpatched"], release, ("1k", "16k"), context.tp), "armed_cost", 45)
    plan.close("unpatched")
    for name, needs in (("4x16k", 30), ("16x4k", 25)):
        plan.rows(name, {"ceiling": "ceiling", "armed": "modes"}, needs)
    for name, needs in (("16k", 15), ("65k", 30), ("1k", 8)):
        plan.rows(name, {"chain": "modes"}, needs)
    plan.close("chain")
    plan.rows("128k", {"ceiling": "ceiling", "armed": "modes"}, 35)
    if "armed" in servers:
        context.stage("coming", lambda: proofs.coming_and_going(servers["armed"], release), "coming_and_going_61_layers", 15)
        context.stage("compares", lambda: proofs.clean(release), "compares_of_the_table")
        if context.programs:
            context.stage("kdtreectl bench", lambda: host.bench(context, armed), "kdtreectl_bench", 25)
    plan.close("ceiling", "armed")
    if context.release is not None:
        context.stage("observer cost", lambda: observer_cost.measure(
            str(context.release.library), context.out / "observe.json", context.record.data["commit"], context.site),
            "observer_cost", 10)


def plan_table(context: Context) -> None:
    """The table: NGRAM trees and DFLASH chains, off, validate, on and off again from one process, live; the ceiling and a
    server without kdtree beside it; how long a switch takes. The servers share the GPU, one at a time is asked."""
    plan = Plan(context)
    try:
        plan.build_and_start(TABLE_SERVERS)
        measure_table(plan)
    finally:
        plan.close()


def plan_proofs(context: Context) -> None:
    """What needs no timing: faults, captures, router, churn, tokens."""
    plan = Plan(context)
    try:
        plan.build_and_start(SMALL_SERVERS)
        plan.prove()
    finally:
        plan.close()


def plan_eagle(context: Context) -> None:
    """Trees of EAGLE's, four branches a node, with graphs and without: validate is clean, on says what off says."""
    plan, names = Plan(context), ("eagle", "eagle_eager")
    try:
        plan.build_and_start(names)
        for name in filter(plan.servers.__contains__, names):
            server, release, orders = plan.servers[name], context.release_of(name), plan.orders[name]
            folder = context.work / name
            folder.mkdir(exist_ok=True)
            context.stage(name, lambda: {
                **proofs.coming_and_going(server, release, temperatures=(0.0, *proofs.TEMPERATURES)),
                **proofs.answered(release)}, name)
            context.stage(f"greedy {name}", lambda: agree.greedy(server, release, orders, folder, tokens=48),
                          f"greedy_tokens_{name}", 20)
    finally:
        plan.close()


def plan_tokens(context: Context) -> None:
    """off against on with all layers: greedy tokens, and logits along a forced text."""
    plan = Plan(context)
    try:
        plan.build()
        plan.start(["tokens"])
        if "tokens" in plan.servers:
            server, release, orders = plan.servers["tokens"], context.release_of("tokens"), plan.orders["tokens"]
            context.stage("greedy", lambda: agree.greedy(server, release, orders, context.work, context.tp),
                          "greedy_tokens")
            context.stage("forced", lambda: agree.forced(server, release, orders, context.work, ranks=context.tp),
                          "forced_logits")
    finally:
        plan.close()


def plan_all(context: Context) -> None:
    """Everything that one GPU can show. All servers but that of `tokens` start at once."""
    plan = Plan(context)
    try:
        plan.build_and_start((*TABLE_SERVERS, *SMALL_SERVERS))
        measure_table(plan)
        plan.prove()
    finally:
        plan.close()
    if time.monotonic() + TOKENS_S < context.deadline:
        plan_tokens(context)
    else:
        context.record.add("skipped", tokens="out of time")


def plan_two(context: Context) -> None:
    """Two GPUs: tensor parallel, then expert parallel, each with every proof that wants more than one rank. With --tp 1 the
    same on one GPU, tensor parallel alone: what it then shows is that the plan runs."""
    plan = Plan(context)
    builder = threading.Thread(target=plan.build)
    builder.start()
    builder.join()
    context.record.put("gpus", [gpu_facts(index) for index in range(context.tp)])
    # One after the other, so both have the product's own run folder, which is where kdtreectl and the agent look.
    context.releases["armed-ep"] = context.release
    for name, ep in (("armed", 1), ("armed-ep", context.tp))[:context.tp]:
        server = None
        try:
            server = start_all(context, {name: lambda: context.server(
                name, plan.small, [*ngram(), *PROOF_FLAGS], "off", {
                    **WEIGHTS, **plan.orders["proof"].environ(), "KDTREE_TEST_SKEW": SKEW,
                    "KDTREE_TEST_FAULTS": "1"}, ep=ep)}).get(name)
            if server is not None:
                two.prove(context, server, plan.orders["proof"], name, ep)
        finally:
            if server is not None:
                server.close()


PLANS = {"all": plan_all, "table": plan_table, "proofs": plan_proofs, "tokens": plan_tokens, "eagle": plan_eagle,
         "two": plan_two}
