# SPDX-License-Identifier: Apache-2.0
"""The order in which files are handed to the workers of a parallel run (pytest -n, --dist loadfile): the longest first."""

from __future__ import annotations

import pytest

# Each of them takes a minute or more; what is not named comes after them, as collected.
LONGEST = ("demo/test_demo", "torture/test_torture", "host/test_host_unit_shapes", "host/test_host_broken", "host/test_host_deb",
           "patch/test_planted", "patch/test_verify", "engine/test_engine_heavy", "host/", "torture/", "contract/test_alerts",
           "contract/test_live", "fuzz/", "patch/")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        return next((rank for rank, part in enumerate(LONGEST) if f"tests/{part}" in item.path.as_posix()), len(LONGEST))

    items.sort(key=place)
