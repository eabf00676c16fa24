# SPDX-License-Identifier: Apache-2.0
"""README's first use, gone through on a host as it is written: its configuration, then its verbs in their order.

What differs from a reader's host: the light engine stands at README's path and has to be accepted, the kernel is the CPU's, and
questions are answered with --yes.
"""

from __future__ import annotations

import json
import re

from kdtree_host import CONFIG, ENGINE, KdtreeHost, engine_unit, merged
from package import REPOSITORY

ADDED = {"deploy": ["--yes", "--accept-engine"], "plan": ["--accept-engine"], "rollback": ["--yes"]}


def blocks() -> list[list[str]]:
    """The indented blocks of "First use"."""
    section = (REPOSITORY / "README.md").read_text().split("## First use\n")[1].split("\n## ")[0]
    return [re.sub("^    ", "", block, flags=re.M).strip("\n").split("\n") for block in re.findall(r"(?:^    .*\n)+", section, re.M)]


def test_first_use(package_layer) -> None:
    package, configuration, verbs = blocks()
    assert package == ["make package", "apt install ./build/release/kdtree_*.deb"], "test_host_deb.py installs one"
    with KdtreeHost([package_layer]) as host:
        host.run(["sh", "-ec", f"ln -s {ENGINE}/* /opt; ln -s {ENGINE}/light /opt/sglang"]).check()
        host.install_engine(engine_unit().replace(f"{ENGINE}/light", "/opt/sglang"))
        host.run(["sh", "-ec", "\n".join(configuration)]).check()
        written = json.loads(host.read("/etc/kdtree/kdtree.json"))
        for key in ("kernel", "deadlines", "validate"):
            written = merged(written, {key: CONFIG[key]})
        host.write("/etc/kdtree/kdtree.json", json.dumps(written))
        seen = []
        for line in verbs:
            words = line.partition("#")[0].split()
            assert words[0] == "kdtreectl"
            verb = words[1]
            seen.append(verb if len(words) == 2 else " ".join(words[1:]))
            added = ["--yes"] if len(words) > 2 else ADDED.get(verb, [])
            if verb == "verdict":
                host.wait("a clean verdict", lambda: host.ctl("verdict").rc == 0, 60)
            done = host.ctl(*words[1:], *added)
            assert done.rc == 0, (line, done.out, done.err)
        assert seen == ["doctor", "plan", "deploy", "mode validate", "verdict", "mode on", "status", "rollback"]
        assert "uninstall" in verbs[-1]
        host.ctl("uninstall", "--yes").check()
