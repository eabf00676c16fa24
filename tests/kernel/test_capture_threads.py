# SPDX-License-Identifier: Apache-2.0
"""Captures while a thread reads and stores what graphs and host share: the thread makes no CUDA call, so none breaks. A
thread that does make one breaks them: the test can fail."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

CODE = """
import ctypes, sys, threading, time
sys.path[:0] = {paths!r}
import torch
from kdtree_kernel.ops import load
load({library!r})
from bench_observe import SHAPE, Step, graph_of
from kdtree_patch.compare import Accumulator, SlotCounts
from kdtree_patch.moe_table import MoeTable
from kdtree_patch.words import Words

step, words, accumulator, slots = Step(2, 9, 300), Words(), Accumulator(), SlotCounts()
word = words.take(True)
step.word, step.accum, step.counts = word.tensor, accumulator.make(True), slots.make(True)
table = MoeTable(torch.ops.kdtree, torch, step.q, 384, 8)
step.count = lambda i, ids: table.count(i, ids)
done, seen, turns = threading.Event(), [], 0

def side():
    global turns
    while not done.is_set():
        turns += 1
        word.store(turns % 3)
        word.ask_look()
        seen.append((accumulator.values()[0].get("compares", 0), slots.values().get("kv_pairs", 0),
                     table.read(True)[0].get("moe_steps", 0), sum(word.steps())))
        time.sleep(0.0005)
        if {calls_cuda}:
            torch.empty(1 << 20, dtype=torch.uint8).pin_memory()
            torch.cuda.synchronize()

thread = threading.Thread(target=side, daemon=True)
thread.start()
graphs = []
for attempt in range({captures}):
    graphs.append(graph_of(step, Step.armed))
    table.begin(18)
    graphs[-1].replay()
    table.end()
torch.cuda.synchronize()
before = turns
while turns < before + 3:
    time.sleep(0.001)
done.set()
thread.join()
compares, pairs, steps, gates = seen[-1]
assert len(graphs) == steps == {captures}, (len(graphs), steps)
assert gates == 2 * {captures}, gates  # each graph was run once eagerly and replayed once
assert compares % 61 == 0 and 0 < compares <= 61 * gates and pairs > 0, (compares, pairs)
assert table.read(True)[1][0][3].tobytes() == table.read(True)[1][0][3].tobytes()
print(turns, compares, pairs)
"""


def run(library: str, calls_cuda: bool, captures: int) -> subprocess.CompletedProcess:
    """In a process of its own: a capture that broke leaves torch unusable."""
    paths = [str(ROOT / "kernel" / "python"), str(ROOT / "kernel" / "bench"), str(ROOT / "sitecustomize")]
    code = CODE.format(paths=paths, library=library, calls_cuda=calls_cuda, captures=captures)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180, check=False)


def test_captures_under_a_thread_that_reads_and_stores_all_the_time(gpu: str, library: str) -> None:
    done = run(library, False, 30)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout.split()[0]) > 100, "the thread must have been at work"


def test_a_cuda_call_of_another_thread_breaks_a_capture(gpu: str, library: str) -> None:
    done = run(library, True, 30)
    assert done.returncode != 0 and "captur" in done.stderr, "then the test above would prove nothing"


@pytest.mark.parametrize("module", ["words", "pinned", "compare", "moe_table", "control", "report", "stats", "counters"])
def test_the_side_threads_modules_call_nothing_of_cuda(module: str) -> None:
    text = (ROOT / "sitecustomize" / "kdtree_patch" / f"{module}.py").read_text()
    assert ".cuda" not in text and "synchronize" not in text
