# SPDX-License-Identifier: Apache-2.0
"""What the GPU scripts are made of, tested without a GPU."""
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
for folder in (HERE, HERE / "hooks"):
    sys.path.insert(0, str(folder))

from stream_server import StreamServer  # noqa: E402


@pytest.fixture
def stream() -> Iterator[StreamServer]:
    """A stand-in for a streaming SGLang server."""
    with StreamServer().running() as server:
        yield server


@pytest.fixture
def head() -> dict[str, object]:
    """The head of a record."""
    return dict(gpu="NVIDIA H200", gpu_uuid="GPU-1", driver="580", sglang="0.5.17", torch="2.11.0+cu130", layers=61,
                date="2026-11-30T00:00:00+00:00", commit="abc")
