# SPDX-License-Identifier: Apache-2.0
"""The benchmark's arithmetic and messages, and the records that README's tables are made from. Nothing is timed here."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "kernel/bench/results/verify-h200.json"
CEILING = {"read_gb_per_s": 4000.0, "matrix_tflop_per_s": 600.0}


def bench():
    sys.path.insert(0, str(ROOT / "kernel/python"))
    from kdtree_kernel import bench as module

    return module


def test_floor_and_bound() -> None:
    b = bench()
    # 65 545 keys of 1152 bytes at 4 TB/s take 18.9 us; 72 rows of 2176 FLOP a key at 600 TFLOP/s 17.1 us.
    near = b.rates(b.point(1, 65_536, 9), 30.0, CEILING)
    assert near["floor_us"] == pytest.approx(18.9, abs=0.05)
    assert near["bound"] == "dram"
    assert b.rates(b.point(1, 65_536, 9), 40.0, CEILING)["bound"] == "latency"
    wide = b.rates(b.point(1, 65_536, 65), 130.0, CEILING)
    assert wide["bound"] == "matrix"
    assert wide["floor_us"] == pytest.approx(65_601 * 520 * 2176 / 600e6, rel=1e-3)


def test_fp8_reads_half_the_bytes() -> None:
    b = bench()
    assert b.rates(b.point(1, 65_536, 9) | {"kv": "fp8_e4m3"}, 10.0, CEILING)["kv_gb_per_s"] == pytest.approx(
        b.rates(b.point(1, 65_536, 9), 10.0, CEILING)["kv_gb_per_s"] / 2, abs=0.1)


def test_sweep_judges_the_chooser() -> None:
    b = bench()
    facts = {"gpu": "G", "driver": "1", "cuda": "13"}
    good = b.sweep_point(b.point(1, 65_536, 9), 132, lambda n: 50.0 if n == 66 else 60.0)
    assert (good["chosen_nsplit"], good["best_nsplit"], good["right"]) == (66, 66, True)
    assert 1 not in good["us"], "one split of a long context is not worth its time"
    wide = b.sweep_point(b.point(1, 65_536, 33), 132, lambda n: 100.0 - 30 * (n == 22))
    assert (wide["chosen_nsplit"], wide["best_nsplit"], wide["right"]) == (18, 22, False), "18 is tried too"
    assert "leave KDTREE_NSPLIT empty" in b.sweep_table(facts | {"rows": [good]})
    assert "wrong in 1 of 2 rows. No single" in b.sweep_table(facts | {"rows": [good, wide]})
    flat = b.sweep_point(b.point(1, 65_536, 9), 132, lambda n: 100.0)
    assert "KDTREE_NSPLIT=22 is within" in b.sweep_table(facts | {"rows": [flat, wide]})


def test_chooser_is_the_kernels() -> None:
    b = bench()
    for line in (ROOT / "kernel/README.md").read_text().splitlines():
        cells = [c.strip() for c in line.split("|")]
        if len(cells) == 6 and cells[1].isdigit() and cells[2].isdigit() and " x " in cells[3]:
            p = b.point(1, 1000, int(cells[1]), heads=int(cells[2]))
            assert b.chosen_nsplit(p, 132) == int(cells[3].split(", ")[1]), line
            assert b.chosen_nsplit(p, 188) == int(cells[4].split(", ")[1]), line


def test_mixed_batch_counts_its_own_lengths() -> None:
    b = bench()
    mixed = b.rates(b.point(2, 1000, 1, contexts=[1000, 500]), 10.0, CEILING)
    assert mixed["kv_gb_per_s"] == pytest.approx(1502 * 1152 / 10e3, abs=0.1)


@pytest.mark.parametrize("text", ["1:65536", "a:1:1", "1:0:9", "1:100:129"])
def test_wrong_points_are_named(text: str) -> None:
    with pytest.raises(ValueError, match=text):
        bench().parse_points(text)


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_without_a_gpu_it_says_so() -> None:
    done = subprocess.run([sys.executable, "-m", "kdtree_kernel.bench", "--lib", "/nowhere/lib.so"], text=True,
                          capture_output=True, cwd=ROOT / "kernel/python")
    assert done.returncode == 1
    assert done.stderr.splitlines() == ["kdtree_kernel.bench: no GPU that torch can use; nothing to time"]


def test_record_has_what_was_promised() -> None:
    record = json.loads(RECORD.read_text())
    assert {"gpu", "driver", "cuda", "date", "commit", "points", "ceilings", "clocks_mhz"} <= record.keys()
    for p in record["points"]:
        assert {"kv", "heads", "batch", "n", "context", "slots", "us", "triton_us", "floor_us", "bound"} <= p.keys()
        assert p["bound"] in ("dram", "matrix", "latency")
        assert p["us"] > 0


def test_readme_shows_the_record() -> None:
    done = subprocess.run([sys.executable, str(ROOT / "kernel/tools/readme_table.py"), "--check"], text=True, capture_output=True)
    assert done.returncode == 0, done.stderr


def test_prediction_follows_its_model() -> None:
    sys.path.insert(0, str(ROOT / "kernel/tools"))
    from predict_sm120 import predict

    names = {"whole": 1.5, "no loads": 1.2, "neither loads nor matrix instructions": 0.4}
    attempts = {"variants": [{"name": f"shipped kernel: {k}", "us_per_step": v, "us": {"1x65536x9": 60.0}} for k, v in names.items()]}
    # fixed 60 - 32 * 1.5 = 12. n 9: 94 splits; 65 545 keys are 2049 units, and 4, in 94 splits: 22 steps of
    # max(0.4 + 0.3 + matrix, 94 * 36 864 B / 1674.5 GB/s = 2.069 us).
    assert predict(attempts, 65_536, 9) == {"us": pytest.approx(12 + 22 * 2.0694, abs=0.01), "bound": "dram"}
    # n 65: 13 groups of 5 tiles, 14 splits; 2055 units in 147 steps of 0.4 + 0.3 + 40 rows * 32 keys * 2176 FLOP / 2.68 TFLOP/s.
    assert predict(attempts, 65_536, 65) == {"us": pytest.approx(12 + 147 * (0.7 + 1.0394), abs=0.1), "bound": "kernel"}
