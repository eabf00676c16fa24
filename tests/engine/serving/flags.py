# SPDX-License-Identifier: Apache-2.0
"""The command line: SGLang 0.5.17's spelling for the flags that deployments of it carry, and a few of our own.

A flag that is not listed ends the start with argparse's usage error and status 2, as in SGLang. Listed flags that the
test engine has no use for are parsed and left alone, so that command lines of real deployments start.
"""
from __future__ import annotations

import argparse
import dataclasses

# SGLang flags that are accepted and ignored: with one value, with a list of values, without a value.
IGNORED_VALUE = (
    "--served-model-name", "--load-format", "--dtype", "--kv-cache-dtype", "--quantization", "--context-length",
    "--sampling-backend", "--page-size", "--chunked-prefill-size", "--max-prefill-tokens", "--tokenizer-path",
    "--random-seed", "--watchdog-timeout", "--tool-call-parser", "--reasoning-parser", "--api-key", "--dist-init-addr",
    "--speculative-algorithm", "--speculative-num-steps", "--speculative-eagle-topk", "--speculative-draft-model-path",
    "--speculative-dflash-block-size", "--speculative-draft-attention-backend", "--speculative-attention-mode",
    "--decode-log-interval", "--max-total-tokens", "--schedule-policy", "--schedule-conservativeness",
    "--expert-distribution-recorder-mode", "--cuda-graph-max-bs", "--cuda-graph-backend-decode",
    "--triton-attention-num-kv-splits", "--stream-interval", "--nnodes", "--node-rank", "--moe-runner-backend",
    "--prefill-attention-backend", "--decode-attention-backend", "--constrained-json-whitespace-pattern",
)
IGNORED_FLAG = (
    "--trust-remote-code", "--skip-tokenizer-init", "--skip-server-warmup", "--disable-radix-cache",
    "--disable-shared-experts-fusion", "--disable-custom-all-reduce", "--disable-overlap-schedule",
    "--enable-mixed-chunk", "--enable-torch-compile", "--disable-cuda-graph-padding", "--enable-return-routed-experts",
    "--enable-deterministic-inference", "--log-requests",
)


@dataclasses.dataclass(frozen=True)
class Flags:
    """What the launcher hands to every rank. Picklable."""

    model_path: str
    host: str
    port: int
    ranks: int
    ep_size: int
    mem_fraction_static: float
    attention_backend: str
    cuda_graph: bool
    graph_batches: tuple[int, ...]
    draft_tokens: int
    max_running_requests: int
    device: str
    log_level: str
    steps_per_second: float
    layers: int
    heads: int
    experts: int
    fault: str
    enable_metrics: bool


def make_parser(description: str) -> argparse.ArgumentParser:
    """The parser; `description` says which engine this is."""
    parser = argparse.ArgumentParser(prog="sglang serve", description=description,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    known = parser.add_argument_group("flags with a meaning here, spelled as in SGLang 0.5.17")
    known.add_argument("--model-path", "--model", required=True, help="printed, never opened")
    known.add_argument("--host", default="127.0.0.1")
    known.add_argument("--port", type=int, default=30000)
    known.add_argument("--tensor-parallel-size", "--tp-size", "--tp", "--ranks", dest="ranks", type=int, default=0,
                       help="rank processes; 0 = 2 with SGLang's own class, 8 without SGLang")
    known.add_argument("--expert-parallel-size", "--ep-size", "--ep", dest="ep_size", type=int, default=1,
                       help="1 = every rank holds a slice of every expert; else it must divide the ranks")
    known.add_argument("--mem-fraction-static", type=float, default=0.88)
    known.add_argument("--attention-backend", default="triton")
    known.add_argument("--disable-cuda-graph", action="store_true")
    known.add_argument("--cuda-graph-bs", "--cuda-graph-bs-decode", dest="graph_batches", type=int, nargs="+",
                       default=[1, 2])
    known.add_argument("--speculative-num-draft-tokens", dest="draft_tokens", type=int, default=9)
    known.add_argument("--max-running-requests", type=int, default=4)
    known.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    known.add_argument("--log-level", default="info")
    known.add_argument("--enable-metrics", action="store_true")
    ours = parser.add_argument_group("flags of the test engine alone")
    ours.add_argument("--steps-per-second", type=float, default=0.0,
                      help="verify steps of synthetic requests that each rank runs while idle (0 = only on request)")
    ours.add_argument("--layers", type=int, default=2, help="the first is dense, the others have a MoE block")
    ours.add_argument("--heads", type=int, default=0,
                      help="query heads of one rank; 0 = 2 with SGLang's class, 1 without SGLang")
    ours.add_argument("--experts", type=int, default=384, help="logical experts of a MoE block, 8 for each token")
    ours.add_argument("--fault", default="", help="see README.md; TEST_ENGINE_FAULT(_FILE) say the same")
    ignored = parser.add_argument_group("SGLang flags that are accepted and ignored")
    for name in IGNORED_VALUE:
        ignored.add_argument(name, help=argparse.SUPPRESS)
    for name in IGNORED_FLAG:
        ignored.add_argument(name, action="store_true", help=argparse.SUPPRESS)
    return parser


def parse(argv: list[str], description: str, default_ranks: int, default_heads: int) -> Flags:
    """argv without the program's name -> Flags. Exits with status 2 on anything that it doesn't know."""
    parser = make_parser(description)
    given = parser.parse_args(argv)
    ranks = given.ranks or default_ranks
    if not 0.0 < given.mem_fraction_static < 1.0:
        parser.error(f"argument --mem-fraction-static: {given.mem_fraction_static} is not between 0 and 1")
    if ranks < 1 or given.ep_size < 1 or ranks % given.ep_size or given.experts % given.ep_size:
        parser.error(f"argument --ep-size: {given.ep_size} must divide the {ranks} ranks and {given.experts} experts")
    if not 1 <= given.draft_tokens <= 128:
        parser.error(f"argument --speculative-num-draft-tokens: {given.draft_tokens} is not between 1 and 128")
    names = {field.name for field in dataclasses.fields(Flags)}
    values = {name: value for name, value in vars(given).items() if name in names}
    values.update(ranks=ranks, heads=given.heads or default_heads, cuda_graph=not given.disable_cuda_graph,
                  graph_batches=tuple(given.graph_batches))
    return Flags(**values)
