# SPDX-License-Identifier: Apache-2.0
"""Hosts for the tests here: one to stop kdtreectl on, one on a disk that can lose its power."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Iterator

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "host")]

from campaign import Bench  # noqa: E402
from kdtree_host import host_layer  # noqa: E402
from machine import Scratch, why_not  # noqa: E402
from verb_scenes import Stage  # noqa: E402


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mine = [item for item in items if Path(str(item.fspath)).parent == HERE]
    reason = why_not() if mine else None
    for item in mine if reason else []:
        item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def bench() -> Iterator[Bench]:
    scratch = Scratch()
    bench = Bench(host_layer(scratch.folder / "package"), scratch.folder)
    yield bench
    bench.close()
    scratch.remove()


@pytest.fixture(scope="session")
def stage(bench: Bench) -> Stage:
    return Stage(bench.host(with_disk=False))
