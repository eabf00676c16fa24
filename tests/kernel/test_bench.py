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
