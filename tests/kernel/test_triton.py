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
