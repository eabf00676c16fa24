# SPDX-License-Identifier: Apache-2.0
"""Each dashboard drawn to a picture by a headless Chromium from a real Prometheus' answers, with the units, limits, colours, thresholds and
mappings of its own JSON (draw_panels.html; Grafana itself is not needed). With KDTREE_PICTURES=FOLDER the pictures are kept there."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from contract_files import BOARDS, ROOT, panels
from live_host import GPUS, RANKS, LiveHost, until

sys.path.insert(0, str(ROOT / "tests/agent"))
from browser import chromium, pixels  # noqa: E402

SECONDS = 12


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveHost]:
    with LiveHost(tmp_path_factory.mktemp("pictures")) as running:
        running.gpus["5"]["fail"] = "lost"
        running.instruct()
        until(lambda: running.instant("kdtree_gpu_up == 0"), "GPU 5 is lost")
        until(lambda: running.instant("kdtree_moe_peak_load_ratio"), "the ranks have been watched a while")
        time.sleep(SECONDS)
        yield running


def legend(target: dict, labels: tuple[tuple[str, str], ...]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda name: dict(labels).get(name.group(1), ""), target["legendFormat"])


def answers(host: LiveHost, panel: dict) -> list[dict]:
    """What each query says: values over the last seconds, or now."""
    found = []
    for target in panel["targets"]:
        query = host.panel_query(target["expr"])
        series = {k: [v] for k, v in host.instant(query).items()} if target.get("instant") else host.ranged(query, SECONDS)
        found += [{"legend": legend(target, labels), "values": values} for labels, values in sorted(series.items())]
    return found


def drawn(host: LiveHost, board: str, folder: Path) -> tuple[str, Path]:
    """The page after it was drawn, and its picture."""
    data = [{"panel": panel, "answers": answers(host, panel)} for panel in panels(board)]
    template = Path(__file__).with_name("draw_panels.html").read_text()
    page, picture = folder / f"{board}.html", folder / f"{board}.png"
    text = json.dumps(data).replace("<", "\\u003c")
    page.write_text(template.replace("const DATA = [];", f"const DATA = {text};"))
    chromium(folder, page.as_uri(), f"--screenshot={picture}", "--window-size=1280,1500")
    if os.environ.get("KDTREE_PICTURES"):
        shutil.copy(picture, os.environ["KDTREE_PICTURES"])
    return chromium(folder, page.as_uri(), "--dump-dom"), picture


def section(dom: str, title: str) -> str:
    """One panel's elements."""
    return next(part for part in dom.split("<section ")[1:] if f'data-title="{title}"' in part)


def fills(dom: str, title: str) -> dict[str, set[str]]:
    """Colours of a heatmap's cells by row."""
    found: dict[str, set[str]] = {}
    for fill, row in re.findall(r'fill="([^"]+)" data-row="([^"]+)"', section(dom, title)):
        found.setdefault(row, set()).add(fill)
    return found


@pytest.mark.parametrize("board", BOARDS)
def test_every_panel_is_drawn(host: LiveHost, board: str, tmp_path: Path) -> None:
    dom, picture = drawn(host, board, tmp_path)
    titles = re.findall(r'<section data-title="([^"]+)" data-series="(\d+)"', dom)
    assert len(titles) == len(panels(board)), "a panel's JSON could not be drawn"
    assert not [title for title, series in titles if int(series) == 0]
    assert "NaN" not in dom and "undefined" not in dom
    width, height, rows = pixels(picture)
    channels = len(rows[0]) // width
    colours = {row[x:x + 3] for row in rows[::5] for x in range(0, width * channels, 3 * channels)}
    assert (width, height) == (1280, 1500) and len(colours) > 40


def test_heatmaps_have_the_boards_colours(host: LiveHost, tmp_path: Path) -> None:
    """Blue at a panel's minimum, yellow in the middle, red at its maximum; the lost GPU has no cell, and is red where its state is shown."""
    dom, _ = drawn(host, "kdtree-host", tmp_path)
    rows = fills(dom, "GPU utilisation")
    assert set(rows) == {f"GPU {gpu}" for gpu in range(GPUS) if gpu != 5}
    blue_to_yellow = [int(re.match(r"rgb\((\d+)", next(iter(rows[f"GPU {gpu}"]))).group(1)) for gpu in (0, 1, 2, 3)]  # 3, 15, 27, 39 %
    assert blue_to_yellow == sorted(blue_to_yellow) and blue_to_yellow[0] < 100 < blue_to_yellow[-1]
    up = fills(dom, "GPU answers")
    assert len(up["GPU 5"]) == 1 and up["GPU 5"] != up["GPU 0"] == up["GPU 7"], up
    loads = fills(drawn(host, "kdtree-moe", tmp_path)[0], "MoE rank load")
    assert len(loads) == RANKS and len(set.union(*loads.values())) == RANKS, "a colour a load"
