# SPDX-License-Identifier: Apache-2.0
"""Hosts for the tests: `plain` (package installed, engine running, nothing deployed), `host` (deployed, mode off)."""

from __future__ import annotations

from pathlib import Path
from typing import Iterator

import pytest

from image import HostError
from kdtree_host import KdtreeHost, host_layer
from machine import Scratch, why_not

def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where no host can run, the tests here are skipped with the one line that says why."""
    mine = [item for item in items if Path(str(item.fspath)).parent == Path(__file__).parent]
    reason = why_not() if mine else None
    for item in mine if reason else []:
        item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def scratch() -> Iterator[Path]:
    """A folder for layers, gone at the end."""
    owned = Scratch()
    yield owned.folder
    owned.remove()


@pytest.fixture(scope="session")
def package_layer(scratch: Path) -> Path:
    """The image's next layer: kdtree's package, the fake driver, the engine's user."""
    return host_layer(scratch / "package")


@pytest.fixture(scope="session")
def deployed_layer(scratch: Path, package_layer: Path) -> Path:
    """What `kdtreectl deploy` leaves on the disk of a host whose engine is enabled: booting on it is a reboot."""
    layer = scratch / "deployed"
    with KdtreeHost([package_layer]) as host:
        host.configure()
        host.install_engine()
        host.systemctl("enable", "sglang.service").check()
        done = host.ctl("deploy", "--yes", "--accept-engine", timeout=300)
        if done.rc != 0:
            raise HostError(f"deploy exited {done.rc}: {done.err.strip()}")
        host.power_off(keep=layer)
    return layer


@pytest.fixture
def plain(package_layer: Path) -> Iterator[KdtreeHost]:
    """Package, configuration, running engine; kdtree has changed nothing yet."""
    with KdtreeHost([package_layer]) as host:
        host.configure()
        host.install_engine()
        yield host


@pytest.fixture
def host(deployed_layer: Path, package_layer: Path) -> Iterator[KdtreeHost]:
    """Deployed, just booted, engine healthy with every rank armed, mode off."""
    with KdtreeHost([deployed_layer, package_layer]) as machine:
        machine.wait_armed()
        yield machine


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> Iterator[None]:
    """A failed test shows the host's journal."""
    outcome = yield
    report = outcome.get_result()
    if report.when == "call" and report.failed:
        for value in item.funcargs.values():
            if isinstance(value, KdtreeHost) and value.leader:
                report.sections.append(("journal of the host", value.journal("-n", "25")))
