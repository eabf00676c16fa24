# SPDX-License-Identifier: Apache-2.0
"""The engine's Python changes under an active release: the patch stands aside, it is said, and a redeploy leads on."""

from __future__ import annotations

import pytest

from kdtree_host import ENGINE, RANKS, KdtreeHost
from test_host_facts import METRICS, scrape
from test_host_mode import clean, switch

REFUSED_STATE, OFF, ON = 2, 0, 2
SITE = f"{ENGINE}/light/lib/python3.11/site-packages"
BACKEND = f"{SITE}/sglang/srt/layers/attention/triton_backend.py"
TORCH = f"{SITE}/torch/version.py"


def upgrade(host: KdtreeHost, path: str, old: str, new: str) -> None:
    """Puts another file in the place of the engine's, which this host sees read-only, and restarts the engine by hand."""
    text = host.read(path)
    assert text.count(old) == 1
    host.write("/var/tmp/" + path.rsplit("/", 1)[1], text.replace(old, new))
    host.run(["mount", "--bind", "/var/tmp/" + path.rsplit("/", 1)[1], path]).check()
    host.systemctl("restart", "sglang.service").check()
    host.wait_healthy()


def to_on(host: KdtreeHost) -> str:
    """validate, a clean verdict, on; the release in force."""
    clean(host)
    assert switch(host, "on").rc == 0
    host.wait_ranks("kdtree's kernel answers", lambda rank: rank["calls_kernel"] > 20 and rank["mode"] == ON)
    return host.path("/opt/kdtree/current").readlink().name


def stands_aside(host: KdtreeHost, said: str) -> None:
    """The engine serves by itself; status, doctor and metrics say what is else and what to do."""
    assert host.http("http://127.0.0.1:30000/health")[0] == 200
    for verb in ("status", "doctor"):
        done = host.ctl(verb)
        assert done.rc == 1 and said in done.out and "the release was made for" in done.out, done.out
        assert "kdtreectl deploy" in done.out and "runbooks/upgrade.md" in done.out, done.out
    host.wait("the agent serves", lambda: host.http(METRICS)[0] == 200, 30)
    host.wait("the metrics say so", lambda: (lambda series: series.get('kdtree_drift{kind="engine"}') == 1 and series.get(
        'kdtree_patch_processes{patch_state="refused"}', 0) >= RANKS)(scrape(host)), 20)
    # A mode that needs a restart would end in the same: refused before the outage.
    before = host.engine("InvocationID")
    done = host.ctl("mode", "validate", "--yes")
    assert done.rc == 3 and "does not fit this host" in done.err and "kdtreectl deploy" in done.err, done.err
    assert host.engine("InvocationID") == before


def redeploy(host: KdtreeHost, old: str) -> None:
    """The way of runbooks/upgrade.md: another release, armed; then on again."""
    done = host.ctl("deploy", "--yes", "--accept-engine", "--mode", "off", timeout=300)
    assert done.rc == 0, done.err
    host.wait_ranks("every rank is armed", lambda rank: rank["patch_state"] == 1 and rank["mode"] == OFF)
    assert host.ctl("status").rc == 0
    assert to_on(host) != old
    assert host.ctl("status").rc == 0
    host.wait("no drift is left", lambda: scrape(host).get('kdtree_drift{kind="engine"}') == 0, 20)


@pytest.mark.parametrize("path, old, new, reason, said", [
    (TORCH, "2.11.0+light", "2.11.1+light", "built for torch 2.11.0+light, the engine runs 2.11.1+light: deploy again",
     "torch 2.11.1+light"),
    (BACKEND, "causal = not (", "causal = True and not (", "unknown engine 0.5.17+light", "sglang 0.5.17+light (fingerprint"),
], ids=["torch", "engine"])
def test_an_upgrade_in_place_while_on(host, path, old, new, reason, said):
    release = to_on(host)
    upgrade(host, path, old, new)
    host.wait("the patch says why it stands aside", lambda: reason in host.journal("-u", "sglang.service", "-b"), 30)
    if path == TORCH:  # known to be the ranks: they got as far as arming
        host.wait_ranks("each rank says so itself", lambda rank: rank["patch_state"] == REFUSED_STATE and rank["reason"] == reason)
    stands_aside(host, said)
    redeploy(host, release)
