# SPDX-License-Identifier: Apache-2.0
"""What changes behind kdtree's back: an engine that is upgraded under a release, and what the engine's user can plant in the
folder that is its own."""

from __future__ import annotations

import os

import pytest

from kdtree_host import ENGINE, HEALTH, RANKS, UNIT, KdtreeHost

STATS = "/run/kdtree/stats"
METRICS = "http://127.0.0.1:9817/metrics"
PACKAGES = "lib/python3.11/site-packages"
UPGRADES = {
    "engine": [f"sed -i 's/^    def forward_extend(/    changed = True\\n\\n&/; s/^        attn_out = /        changed = 1\\n&/' "
               f"$1/{PACKAGES}/sglang/srt/layers/attention/triton_backend.py"],
    "torch": [f"sed -i 's/2[.]11[.]0/2.12.0/' $1/{PACKAGES}/torch/version.py $1/{PACKAGES}/torch-2.11.0+light.dist-info/METADATA",
              f"mv $1/{PACKAGES}/torch-2.11.0+light.dist-info $1/{PACKAGES}/torch-2.12.0+light.dist-info"],
}


@pytest.mark.parametrize("what", UPGRADES)
def test_an_upgrade_under_a_release_is_said_and_the_patch_stands_aside(host, what):
    """A redeploy leads on."""
    light, new = f"{ENGINE}/light", "/var/tmp/light"
    script = [f"cp -r {light} {new}", *UPGRADES[what], f"chmod -R go-w {new}", f"mount --bind {new} {light}"]
    host.run(["sh", "-ec", "\n".join(script), "upgrade", new]).check()
    host.systemctl("restart", UNIT).check()
    host.wait_healthy()
    host.wait("no rank is armed", lambda: not any(rank["patch_state"] == 1 for rank in host.ranks().values()))
    status = host.ctl("status")
    assert status.rc == 1 and "refused" in status.out, status.out
    assert host.ctl("doctor").rc == 1
    assert host.http(HEALTH)[0] == 200  # by the engine's own kernel

    done = host.ctl("deploy", "--yes")
    if what == "engine":  # not known, and accepted was another one
        assert done.rc == 3 and "--accept-engine" in done.err, done.err
    done = host.ctl("deploy", "--yes", "--accept-engine")
    assert done.rc == 0, done.err
    assert len(host.ranks()) == RANKS and {rank["patch_state"] for rank in host.ranks().values()} == {1}
    assert host.ctl("status").rc == 0


def test_what_is_planted_in_the_engines_folder_is_neither_followed_nor_run(host):
    victim = "/root/victim"
    host.write(f"{victim}/file", "precious\n", 0o600)
    before = host.tree(victim)
    planted = ["ln -s /etc/shadow 1.stats", "mkfifo 2.stats", "mkdir 3.stats", "truncate -s 1T 4.stats", "ln -s /dev/zero 5.stats",
               f"ln -s {victim} deep", f"ln -s {victim}/file 6.stats", "touch \"$(printf 'a\\nkdtree_up 0\\033[2J.stats')\"",
               "printf 'garbage' >7.stats", "ln -s 8.stats 8.stats"]
    host.run(["sh", "-ec", f"cd {STATS}\n" + "\n".join(planted)], user="sglang").check()
    status = host.ctl("status", timeout=30)
    assert status.rc == 1 and "root:" not in status.out + status.err and "\033" not in status.out + status.err, status.out
    assert not any(line.startswith("kdtree_up 0") for line in status.out.splitlines())
    assert sum(rank["patch_state"] == 1 for rank in host.ranks().values()) == RANKS
    assert host.ctl("doctor", timeout=60).rc == 1
    code, page = host.http(METRICS)
    assert code == 200 and "root:" not in page and "\033" not in page and "kdtree_up 0" not in page.splitlines()
    for verb in (["mode", "validate"], ["mode", "off", "--cold"], ["mode", "off"], ["uninstall"]):
        done = host.ctl(*verb, "--yes")
        assert done.rc == 0, (verb, done.err)
        if verb == ["mode", "off"]:  # the folder is the engine's again, and the links with it
            host.run(["sh", "-ec", f"cd {STATS}; ln -sfn {victim} deep; ln -sf {victim}/file 6.stats"], user="sglang").check()
    assert host.tree(victim) == before
    assert not os.path.lexists(host.path(STATS))


def test_the_engines_user_cannot_put_anything_where_root_looks(host):
    for path in ("/run/kdtree/control", "/run/kdtree/x", "/opt/kdtree/x", "/opt/kdtree/releases/x", "/var/lib/kdtree/x",
                 f"/etc/systemd/system/{UNIT}.d/99-x.conf", "/etc/kdtree/kdtree.json"):
        done = host.run(["sh", "-c", f"echo x >{path}"], user="sglang")
        assert done.rc != 0 and "denied" in done.err.lower(), path
