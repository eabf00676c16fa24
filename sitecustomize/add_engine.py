# SPDX-License-Identifier: Apache-2.0
"""Adds an engine to kdtree_patch/engines.json: python3 add_engine.py PACKAGE_FOLDER

PACKAGE_FOLDER is the sglang folder of an unpacked wheel of a release whose touched sources were read and whose own class
passed tests/patch/test_engines.py; its version comes from the package. Exit status 0, or 2 for a folder that can't be
added."""
import json
import os
import sys

from kdtree_patch import fingerprint


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or not os.path.isdir(arguments[0]):
        print("add_engine: give the sglang folder of an unpacked wheel", file=sys.stderr)
        return 2
    engine = fingerprint.examine(os.path.abspath(arguments[0]))
    if not engine.version or not engine.binds:
        print(f"add_engine: {arguments[0]} is no engine that kdtree binds to: {engine.differences}", file=sys.stderr)
        return 2
    known = [k for k in fingerprint.known_engines() if k["version"] != engine.version]
    known.append({"engine": "sglang", "version": engine.version, "fingerprint": engine.fingerprint,
                  "items": engine.items, "parameters": engine.parameters})
    known.sort(key=lambda k: [int(p) if p.isdigit() else 0 for p in k["version"].split(".")])
    path = os.path.join(os.path.dirname(fingerprint.__file__), "engines.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"engines": known}, file, indent=1, sort_keys=True)
        file.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
