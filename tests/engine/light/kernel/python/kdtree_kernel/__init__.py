# SPDX-License-Identifier: Apache-2.0
"""Stand-in for kdtree_kernel on hosts of the light test engine: the same two functions, ops in plain Python."""
from kdtree_kernel.ops import load, loaded

__all__ = ["load", "loaded"]
