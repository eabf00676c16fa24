# SPDX-License-Identifier: Apache-2.0
"""torch.ops.kdtree: loading it, its fake implementations, and the layouts that its pinned host structs have.

    load("/opt/kdtree/current/lib/libkdtree_torch.so")
    torch.ops.kdtree.verify_attn(...)
"""

from kdtree_kernel.abi import (COMPARE_ACCUM_BYTES, GATE_FLAGS, GATE_WORD_BYTES, MOE_SHARE, SLOT_COUNTS_BYTES,
                               ask_look, read_compare, read_gate, read_moe, read_slots, set_mode)
from kdtree_kernel.ops import load, loaded

__all__ = ["COMPARE_ACCUM_BYTES", "GATE_FLAGS", "GATE_WORD_BYTES", "MOE_SHARE", "SLOT_COUNTS_BYTES", "ask_look", "load",
           "loaded", "read_compare", "read_gate", "read_moe", "read_slots", "set_mode"]
