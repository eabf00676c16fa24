# SPDX-License-Identifier: Apache-2.0
"""The benchmark's arithmetic and messages. Nothing is timed here."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
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
