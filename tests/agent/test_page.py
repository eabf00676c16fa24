# SPDX-License-Identifier: Apache-2.0
"""The landing page in a real browser: headless Chromium against a real agent, light and dark.

With KDTREE_PICTURES=FOLDER the screenshots are kept there.
"""
from __future__ import annotations

import http.server
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from browser import DARK, LIGHT, chromium, pixels
from conftest import ROOT, Agent

GIB = 1 << 30
RANKS = 8


def start_ranks(agent: Agent, ep_size: int) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "sitecustomize")}
    environment.pop("KDTREE_VERIFY", None)
    for rank in range(RANKS):
        agent.writers.append(subprocess.Popen([sys.executable, str(Path(__file__).with_name("kimi_rank.py")), str(agent.stats), str(rank),
                                               str(RANKS), str(ep_size)], env=environment))


@pytest.fixture
def scene(agent: Agent) -> Agent:
    """Eight GPUs, one of them lost, and eight ranks at EP 1."""
    agent.configure(ranks=RANKS)
    (agent.root / "opt/kdtree/current").symlink_to("releases/0.1.0-3f9c2a7b")
    gpus = {str(i): {"utilization": "wave", "memory_used": (80 + i) * GIB, "power_mw": 310_000 + 9000 * i, "temperature": 58 + i,
                     "gpm": {"2": 91.0, "5": 11.5 + i}} for i in range(8)}
    gpus["5"]["fail"] = "lost"
    agent.gpus({"gpus": gpus})
    start_ranks(agent, 1)
    agent.start()
    agent.until(lambda: agent.value("kdtree_moe_what_if_peak_load_ratio", ep_size="8"), "routing was watched for a while")
    return agent


def keep(picture: Path) -> None:
    if os.environ.get("KDTREE_PICTURES"):
        shutil.copy(picture, Path(os.environ["KDTREE_PICTURES"]) / picture.name)


def test_it_draws_what_is_known_and_nothing_else(scene: Agent, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{scene.port}/"
    page = chromium(tmp_path, url, "--dump-dom")
    assert re.search(r'data-drawn="[1-9]', page), page[-3000:]
    assert len(re.findall(r'class="strip"[^>]*aria-label="GPU \d: \d+ %"', page)) == 7
    assert 'aria-label="GPU 5: lost"' in page
    lost = re.search(r'<svg[^>]*aria-label="GPU 5: lost".*?</svg>', page, re.S).group()
    assert "<rect" not in lost, "a lost GPU has no cell since it was never sampled"
    assert len(re.findall(r'aria-label="part \d: \d\.\d\d of the mean"', page)) == 8
    first = re.search(r'<svg[^>]*aria-label="part 0:.*?</svg>', page, re.S).group()
    assert len(re.findall("<rect", first)) == 60
    assert "even by construction; shown is what EP 8 would make" in page and "uniform routing would give" in page
    assert "8 of 8" in page and "0.1.0-3f9c2a7b" in page
    assert page.count("<tr>") == 1 + RANKS


def test_light_and_dark(scene: Agent, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{scene.port}/"
    for name, scheme in (("light", LIGHT), ("dark", DARK)):
        picture = tmp_path / f"page-{name}.png"
        chromium(tmp_path, url, f"--screenshot={picture}", scheme=scheme)
        keep(picture)
        width, height, rows = pixels(picture)
        assert (width, height) == (1280, 1180)
        channels = len(rows[0]) // width
        corner = sum(rows[2][:3]) / 3
        assert (corner > 200) if scheme == LIGHT else (corner < 60), f"{name}: the paper is {corner}"
        colours = {row[x:x + 3] for row in rows[100:1000:7] for x in range(0, width * channels, 5 * channels)}
        assert len(colours) > 40, "the heatmaps have their shades"


class Silenced(http.server.BaseHTTPRequestHandler):
    """The page as it is, and a live.json that is answered once."""
    live: bytes = b""
    answers = 1

    def do_GET(self) -> None:
        name = self.path.lstrip("/") or "index.html"
        body = self.live if name == "live.json" else (ROOT / "agent/metrics/page" / name).read_bytes()
        if name == "live.json":
            type(self).answers -= 1
        self.send_response(503 if name == "live.json" and self.answers < 0 else 200)
        self.send_header("Content-Type", {"html": "text/html", "css": "text/css", "js": "text/javascript"}.get(name.split(".")[-1], "application/json"))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("seconds", [3, 20])
def test_an_agent_that_is_gone_leaves_nothing_on_the_page(scene: Agent, tmp_path: Path, seconds: int) -> None:
    """At first what it said last is still young; then all of it goes."""
    Silenced.live, Silenced.answers = scene.get("/live.json")[1].encode(), 1
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Silenced) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page = chromium(tmp_path, f"http://127.0.0.1:{server.server_port}/", "--dump-dom", f"--virtual-time-budget={1000 * seconds}")
        server.shutdown()
    assert ('class="strip"' in page) == (seconds < 8)
    assert ("no answer since" in page) == (seconds > 8)


def test_a_page_is_drawn_from_what_was_kept(scene: Agent, tmp_path: Path) -> None:
    from draw_page import draw
    (tmp_path / "live.json").write_text(scene.get("/live.json")[1])
    draw(tmp_path / "live.json", tmp_path / "page.png")
    width, _, rows = pixels(tmp_path / "page.png")
    channels = len(rows[0]) // width
    assert len({row[x:x + 3] for row in rows[100:1000:7] for x in range(0, width * channels, 5 * channels)}) > 40, "the heatmaps have their shades"


def test_nothing_comes_from_outside() -> None:
    for name in ("index.html", "page.css", "page.js"):
        text = (ROOT / "agent/metrics/page" / name).read_text()
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|//cdn|@import", text), name
