# SPDX-License-Identifier: Apache-2.0
"""A picture of the agent's page from a /live.json that was kept, as it looked then: for runs on hosts without a browser.

    python3 tests/agent/draw_page.py live.json page.png
"""
from __future__ import annotations

import http.server
import json
import sys
import tempfile
import threading
from pathlib import Path

from browser import chromium
from test_page import Silenced


def draw(live: Path, picture: Path) -> None:
    """Errors: AssertionError where the browser fails, ValueError where the file is no live.json."""
    json.loads(live.read_text())["gpus"]
    Silenced.live, Silenced.answers = live.read_bytes(), 1
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Silenced) as server, tempfile.TemporaryDirectory() as folder:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        # The page forgets what it was told after 8 s; the picture is taken after 2.
        chromium(Path(folder), f"http://127.0.0.1:{server.server_port}/", f"--screenshot={picture.absolute()}", "--virtual-time-budget=2000")
        server.shutdown()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    draw(Path(sys.argv[1]), Path(sys.argv[2]))
