# SPDX-License-Identifier: Apache-2.0
"""python -m kdtree_patch.probe --json: which engine this Python would run, from its files alone.

{"engine", "version", "fingerprint", "known", "binds", "differences", "items", "torch", "python", "site"}; unknown = "".
No engine is an answer too: "engine" is "". Exit status 0 when it could answer, 2 for a wrong command line."""
import argparse
import importlib.util
import json
import os
import platform
import re
import sys

from .fingerprint import examine, find_package


def torch_version() -> str:
    """Version of the torch that this Python would import, read from its files; "" = none or unknown."""
    try:
        spec = importlib.util.find_spec("torch")
        place = list(spec.submodule_search_locations)[0]
        with open(os.path.join(place, "version.py"), encoding="utf-8") as file:
            found = re.search(r"""^__version__\b[^'"\n]*['"]([^'"\n]+)['"]""", file.read(), re.MULTILINE)
        return found.group(1) if found else ""
    except (ImportError, AttributeError, TypeError, IndexError, OSError, ValueError):
        return ""


def probe() -> dict[str, object]:
    """The facts above."""
    facts: dict[str, object] = {"engine": "", "version": "", "fingerprint": "", "known": False, "binds": False,
                                "differences": ["this Python has no sglang package"], "items": {},
                                "torch": torch_version(), "python": platform.python_version(), "site": ""}
    folder = find_package()
    if folder:
        engine = examine(folder)
        facts.update(engine="sglang", version=engine.version, fingerprint=engine.fingerprint, known=engine.known,
                     binds=engine.binds, differences=engine.differences, items=engine.items,
                     site=os.path.dirname(folder))
    return facts


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m kdtree_patch.probe", description="Which engine would run here.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    facts = probe()
    if arguments.json:
        print(json.dumps(facts, sort_keys=True))
    elif facts["engine"]:
        print(f"sglang {facts['version']} at {facts['site']}: {'known' if facts['known'] else 'unknown'}, fingerprint "
              f"{facts['fingerprint']}")
        for line in facts["differences"]:
            print(f"  {line}")
    else:
        print(facts["differences"][0])
    return 0


if __name__ == "__main__":
    sys.exit(main())
