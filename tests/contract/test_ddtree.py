# SPDX-License-Identifier: Apache-2.0
"""The engine that kdtree is for is a patched build with DDTree: its metadata, its fully masked padding rows and trees of up
to 65 nodes, through the patch's decision and the op's CPU implementation, against fp64."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from contract_files import ROOT, library

sys.path[:0] = [str(ROOT / "tests" / "patch"), str(ROOT / "sitecustomize")]
import test_graphs  # noqa: E402
from patch_rig import Rig, ask  # noqa: E402

HERE = Path(__file__).resolve().parent
TOLERANCE = 2e-3  # fp16: two roundings, of the weights and of the output

# (budget, prefixes, tree sizes): a chain, a chain shorter than the block, trees with and without padding nodes
SHAPES = {
    "chain 16": (15, [40, 7], [16, 16]),
    "chain 9": (8, [33, 1], [9, 9]),
    "tree 33": (32, [64, 5, 1], [33, 20, 1]),
    "tree 65": (64, [96, 31, 2], [65, 34, 3]),
    "tree 65 full": (64, [17], [65]),
}
CODE = f"""
import json, sys
sys.path[:0] = [{str(HERE)!r}, {str(ROOT / "tests" / "engine")!r}]
import ddtree_scene as d
from kdtree_patch import stats_format as f
from kdtree_patch.patch import PATCH

engine = d.Engine()
facts = {{"state": PATCH.state, "reason": PATCH.reason}}

def modes(name, *args, **options):
    facts[name] = {{}}
    for mode in (f.OFF, f.VALIDATE, f.ON):
        PATCH.set_mode(mode)
        facts[name][f.MODE_NAMES[mode]] = d.errors(d.Batch(engine, *args, **options))

for name, shape in {SHAPES!r}.items():
    modes(name, *shape, seed=1)
modes("padding sees itself", *{SHAPES["tree 65"]!r}, seed=2, padding_sees_itself=True)
modes("sum unknown", *{SHAPES["tree 33"]!r}, seed=3, knows_sum=False)
modes("captured", *{SHAPES["tree 65"]!r}, seed=4, padded=2)
values, batches, _ = __import__("kdtree_patch.report", fromlist=["report"]).report(PATCH)
facts["counts"] = {{n: values.get(n) for n in ("calls_kernel", "calls_engine", "compares", "mismatches", "max_ulp",
                                              "longest_prefix")}}
facts["handed_back"] = sum(values["handed_back"])
facts["batches"] = sorted(batches.items())

# what the mask rules, and what it doesn't: the two forms of padding rows differ, the prefix columns don't count
same = [d.Batch(engine, *{SHAPES["tree 65"]!r}, seed=5, padding_sees_itself=itself) for itself in (False, True)]
PATCH.set_mode(f.ON)
first, second = (batch.run().clone() for batch in same)
rows = same[0].is_padding()
facts["differ"] = [float((first - second)[~rows].abs().max()), float((first - second)[rows].abs().max())]

# the draft model's own verify, non-causal, is not kdtree's
from sglang.srt.layers.radix_attention import AttentionType
engine.layer.attn_type = AttentionType.ENCODER_ONLY
before = list(PATCH.counters.handed_back)
d.Batch(engine, 15, [8], [16], seed=6).run()
facts["draft"] = [i for i, (a, b) in enumerate(zip(before, PATCH.counters.handed_back)) if a != b]
engine.layer.attn_type = AttentionType.DECODER
"""
# Warm-up, capture and replays of one graph, as test_graphs.py walks them: five requests, two of them padding.
GRAPH = f"""
import os
batch = d.Batch(engine, *{SHAPES["tree 65"]!r}, seed=7, padded=2)
PATCH.set_mode(f.ON)
capture_mode.is_capture_mode = True
facts["warm-up"] = d.errors(batch)
capturing = True
facts["capture"] = d.errors(batch)
capture_mode.is_capture_mode = False
for mode in (f.OFF, f.VALIDATE, f.ON):
    PATCH.set_mode(mode)
    facts[f"replay {{mode}}"] = d.errors(batch)
facts["graphs"] = [[*key[:3], entry.broken] for key, entry in graphs._entries.items()]
print(json.dumps(facts))
"""


class RealRig(Rig):
    kernel_package = ROOT / "kernel" / "python" / "kdtree_kernel"


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict:
    op = library("libkdtree_torch.so")
    RealRig.library_bytes = op.read_bytes()
    rig = RealRig(tmp_path_factory.mktemp("ddtree"))
    (rig.library.parent / "libkdtree.so").write_bytes(library("libkdtree.so").read_bytes())
    return ask(rig, CODE + "import torch\n" + test_graphs.SETUP + GRAPH, TORCHDYNAMO_DISABLE="1", OMP_NUM_THREADS="1", LD_LIBRARY_PATH=os.environ.get("LD_LIBRARY_PATH"))


CASES = [*SHAPES, "padding sees itself", "sum unknown", "captured"]


@pytest.mark.parametrize("mode", ["off", "validate", "on"])
@pytest.mark.parametrize("case", CASES)
def test_tree_nodes_and_padding_nodes_are_right(facts: dict, case: str, mode: str) -> None:
    """off is Triton's own kernel: a padding node attends the prefix there too, so that kdtree's answer is no other."""
    nodes, padding = facts[case][mode]
    assert nodes < TOLERANCE and padding < TOLERANCE


def test_every_call_was_kdtrees_to_answer_and_none_differed(facts: dict) -> None:
    assert (facts["reason"], facts["handed_back"]) == ("", 0)
    counts = facts["counts"]
    assert (counts["calls_kernel"], counts["calls_engine"]) == (len(CASES), 2 * len(CASES))
    assert (counts["compares"], counts["mismatches"], counts["longest_prefix"]) == (len(CASES), 0, 96)
    assert 0 < counts["max_ulp"] <= 4


@pytest.mark.parametrize("step", ["warm-up", "capture", "replay 0", "replay 1", "replay 2"])
def test_a_graph_of_65_nodes_with_padded_requests_answers_right_in_each_mode(facts: dict, step: str) -> None:
    nodes, padding = facts[step]
    assert nodes < TOLERANCE and padding < TOLERANCE
    assert facts["graphs"] == [[5, 65, 2, False]]


def test_the_mask_rules_the_tree_and_nothing_else(facts: dict) -> None:
    nodes, padding = facts["differ"]
    assert nodes == 0.0 and padding > 0.05


def test_the_draft_models_own_verify_is_handed_back(facts: dict) -> None:
    from kdtree_patch import stats_format
    assert facts["draft"] == [stats_format.BACK_ATTENTION_TYPE]
