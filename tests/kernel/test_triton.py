# SPDX-License-Identifier: Apache-2.0
"""The op against SGLang's own Triton kernel, under Triton's interpreter on the CPU (which is right in fp16 and fp32 only)."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent


@pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="no SGLang in this Python")
def test_same_as_sglangs_kernel(library: str) -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, str(HERE / "against_triton.py"), library], env=environment, text=True,
                          capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = json.loads(done.stdout.splitlines()[-1])
    assert len(rows) == 6
    for row in rows:
        assert row["difference"] <= row["allowed"], row


@pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="no SGLang in this Python")
def test_fp8_as_sglangs_kernel_but_for_its_rounded_weights(library: str) -> None:
    """SGLang's kernel is what as_sglang() says, and ours is the same with exact weights: q cast, both scales, drafts as they
    are."""
    environment = os.environ | {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, str(HERE / "against_triton_fp8.py"), library], env=environment, text=True,
                          capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["casts"] > 0 and len(found["rows"]) == 2
    for row in found["rows"]:
        assert row["sglang_as_said"] <= 2e-3 and row["op_exact"] <= 2e-3, row
        assert 5e-3 < row["rounded_weights_cost"] < 0.1, "what is left is an e4m3 weight's 2^-4 at most, on every key"
