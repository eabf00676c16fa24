# SPDX-License-Identifier: Apache-2.0
"""What is proven on a GPU host, in one go: brings real SGLang servers up with and without kdtree, measures, writes records.

    python3 run.py PLAN --site FOLDER --out FOLDER [--layers 61] [--minutes 9]

PLAN: all (one GPU), its parts table, proofs and tokens, or two (two GPUs: --tp 2). See README.md.
"""
import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from live_engine import plans  # noqa: E402
from live_engine.context import Context, gpu_facts, head  # noqa: E402
from live_engine.records import Record  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("plan", choices=sorted(plans.PLANS))
    parser.add_argument("--site", default="", help="folder with the sglang package, if it isn't this Python's own")
    parser.add_argument("--out", type=Path, required=True, help="where the record and the logs go")
    parser.add_argument("--work", type=Path, default=Path("/tmp/kdtree-gpu"), help="scratch: models, kernel, release")
    parser.add_argument("--layers", type=int, default=61)
    parser.add_argument("--minutes", type=float, default=60, help="no stage starts after that")
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--arch", default="90")
    parser.add_argument("--programs", default="", help="folder with kdtree-agent and kdtreectl, built for this host")
    parser.add_argument("--entry-point", action="store_true", help="kdtree by SGLang's plugin entry point alone")
    parser.add_argument("--shapes", default="", help="rows of the table, say 16k,65k,4x16k,dflash:16k; default: all")
    options = parser.parse_args()
    for folder in (options.out, options.work):
        folder.mkdir(parents=True, exist_ok=True)
    record = Record(options.out / f"engine-{options.plan}.json", head(gpu_facts(), options.site, options.layers))
    context = Context(options.site, options.out, options.work, options.layers, record,
                      time.monotonic() + 60 * options.minutes, options.tp, options.arch, options.programs,
                      options.entry_point, tuple(filter(None, options.shapes.split(","))))
    record.put("way_in", "plugin entry point" if options.entry_point else "sitecustomize")
    plans.PLANS[options.plan](context)
    context.say("failed: " + (", ".join(context.failed) or "nothing"))
    return 1 if context.failed else 0


if __name__ == "__main__":
    sys.exit(main())
