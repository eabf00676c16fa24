# SPDX-License-Identifier: Apache-2.0
"""The outer side of hooks/kdtree_test_hooks/orders.py: gives an order, waits until the engine has obeyed it."""
import json
import os
import time
from pathlib import Path

from . import load

WAIT_S = 60.0


class Orders:
    """One file a server; environ() names it to the server before it starts."""

    def __init__(self, path: Path):
        self._path, self._id = path, 0

    def environ(self) -> dict[str, str]:
        return {"KDTREE_TEST_COMMAND": str(self._path)}

    def give(self, url: str, ranks: int = 1, **order: object) -> dict:
        """What rank 0 answered. A short request makes the engine look. Errors: RuntimeError."""
        self._id += 1
        fresh = self._path.with_suffix(".new")
        fresh.write_text(json.dumps({"id": self._id, **order}))
        os.replace(fresh, self._path)
        load.generate(url, load.prompt_ids(999, 8), tokens=1)
        deadline = time.monotonic() + WAIT_S
        while True:
            answers = [self._answer(rank) for rank in range(ranks)]
            if all(a.get("id") == self._id for a in answers):
                break
            if time.monotonic() > deadline:
                raise RuntimeError(f"order {order} was not obeyed in {WAIT_S} s")
            time.sleep(0.05)
        errors = [a["error"] for a in answers if "error" in a]
        if errors:
            raise RuntimeError(f"order {order}: {errors[0]}")
        return answers[0]

    def _answer(self, rank: int) -> dict:
        try:
            return json.loads(Path(f"{self._path}.{rank}.done").read_text())
        except (OSError, ValueError):
            return {}
