# SPDX-License-Identifier: Apache-2.0
"""Runs at the start of every Python process of the engine. Without KDTREE_VERIFY it only runs the next sitecustomize on
the path, which it hides; what that one raises is reported by Python as if kdtree were not there."""
import os
import sys

if os.environ.get("KDTREE_VERIFY"):
    try:
        import kdtree_patch

        kdtree_patch.bootstrap()
    except Exception:  # fail open: the engine starts without kdtree and its stats file is missing, which status shows
        pass

if "_kdtree_chained" not in sys.modules:  # a next one that chains too may lead back here
    sys.modules["_kdtree_chained"] = own = sys.modules[__name__]
    here = os.path.dirname(os.path.realpath(__file__))
    dropped = [(i, p) for i, p in enumerate(sys.path) if os.path.realpath(p or os.curdir) == here]
    sys.path[:] = [p for i, p in enumerate(sys.path) if (i, p) not in dropped]
    sys.modules.pop(__name__, None)
    try:
        import sitecustomize  # noqa: F401  the next one
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules[__name__] = own
    finally:
        for i, p in dropped:
            sys.path.insert(i, p)
