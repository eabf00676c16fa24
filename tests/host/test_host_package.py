# SPDX-License-Identifier: Apache-2.0
"""The package on a bare host: everything is where it belongs, links, and passes systemd's own checks."""

from __future__ import annotations

import re
import stat

import pytest

from kdtree_host import KdtreeHost
from package import REPOSITORY, missing_libraries


@pytest.fixture(scope="module")
def bare(package_layer):
    with KdtreeHost([package_layer], stand_in_kernel=False) as machine:
        yield machine


def test_programs_find_their_libraries(bare):
    assert missing_libraries(bare, "/usr/bin/kdtreectl", "/usr/bin/kdtree-agent") == []
    assert bare.ctl("--version").check().out.strip()


def test_everything_is_installed(bare):
    for path in ("/usr/share/kdtree/kernel/CMakeLists.txt", "/usr/share/kdtree/sitecustomize/sitecustomize.py",
                 "/usr/share/kdtree/sitecustomize/kdtree_patch/__init__.py", "/usr/share/kdtree/dashboards",
                 "/usr/share/kdtree/runbooks", "/usr/lib/systemd/system/kdtree-agent.service",
                 "/usr/lib/systemd/system/kdtree-recover.service"):
        assert bare.path(path).exists(), path
    assert list(bare.path("/usr/share/man/man8").glob("kdtreectl.8*"))


def test_units_pass_systemd_verify(bare):
    done = bare.run(["systemd-analyze", "verify", "--man=no", "kdtree-agent.service", "kdtree-recover.service"])
    assert (done.rc, done.out + done.err) == (0, "")


def test_the_agent_unit_is_hardened(bare):
    done = bare.run(["systemd-analyze", "security", "--no-pager", "--threshold=20", "kdtree-agent.service"])
    assert done.rc == 0, done.out.strip().splitlines()[-1]


def test_run_folder_belongs_to_root_alone(bare):
    about = bare.path("/run/kdtree").stat()
    assert about.st_uid == 0 and not about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def test_every_event_is_explained_by_the_catalogue(bare):
    done = bare.run(["journalctl", "--update-catalog"])
    assert done.rc == 0 and not done.err.strip(), done.err
    ids = re.findall(r'return "([0-9a-f]{32})"', (REPOSITORY / "agent/systemd/event_log.cpp").read_text())
    listed = bare.run(["journalctl", "--list-catalog", *ids]).check().out
    assert len(ids) == 4 and all(each in listed for each in ids), listed


def test_the_agent_user_has_no_shell_and_no_password(bare):
    entry = bare.run(["getent", "passwd", "kdtree-agent"]).check().out.strip().split(":")
    assert entry[6].endswith("nologin")


def test_nothing_runs_that_was_not_asked_for(bare):
    assert bare.systemctl("is-active", "kdtree-agent").out.strip() == "inactive"
    assert bare.run(["ss", "-ltnH"]).check().out == ""
