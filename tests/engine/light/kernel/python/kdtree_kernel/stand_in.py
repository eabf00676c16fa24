# SPDX-License-Identifier: Apache-2.0
"""torch.ops.kdtree in plain Python: the arithmetic of the light engine's own kernel, written a second time, and the
accumulator of kernel/include/kdtree/compare.h. Registers itself on import."""
import itertools
import math
import struct

import torch
from torch._ops import registry

_VALUES, _V_DIM, _MAX_BATCH = 4, 512, 512
_HEAD = struct.Struct("<QQQQdddqii")
_DIGITS = {"bfloat16": 7, "float16": 10, "float32": 23}


def verify_attn_workspace_bytes(batch, draft_tokens, heads, like, nsplit=0):
    return 16


def compare_workspace_bytes(tokens, like):
    return 0


def verify_attn(q, k_draft, out, kv_pool, qo_indptr, kv_indptr, kv_indices, custom_mask, mask_indptr, out_cache_loc,
                workspace, draft_tokens, sm_scale, enable=None, out_scratch=None, nsplit=0):
    if enable is not None and not int(enable):
        return
    heads, width = q.shape[1], q.shape[2]
    bounds, slots, rows = kv_indptr.tolist(), kv_indices.tolist(), qo_indptr.tolist()
    mask = None if custom_mask is None else custom_mask.tolist()
    starts = None if mask_indptr is None else mask_indptr.tolist()
    pool, pool_at = kv_pool._storage, kv_pool.storage_offset()
    answer, answer_at = out._storage, out.storage_offset()
    queries, queries_at = q._storage, q.storage_offset()
    if k_draft is None:
        keys = [[pool[pool_at + slot * width + c] for c in range(_VALUES)] for slot in out_cache_loc.tolist()]
    else:
        draft, at = k_draft._storage, k_draft.storage_offset()
        keys = [draft[at + i * width:at + i * width + _VALUES] for i in range(k_draft.shape[0])]
    for b, prefix in enumerate(bounds[1:]):
        own = slots[bounds[b]:prefix]
        base = [sum(pool[pool_at + slot * width + c] for slot in own) for c in range(_VALUES)]
        first, n = rows[b], rows[b + 1] - rows[b]
        for i in range(n):
            at = 0 if mask is None else starts[b] + i * (len(own) + n) + len(own)
            visible = [keys[first + j] for j in range(n) if (j <= i if mask is None else mask[at + j])]
            for c in range(_VALUES):
                mean = (base[c] + sum(key[c] for key in visible)) / (len(own) + len(visible))
                for h in range(heads):
                    row = (first + i) * heads + h
                    answer[answer_at + row * _V_DIM + c] = queries[queries_at + row * width + c] / 2 + mean


def gate(word, qo_indptr, kv_indptr, gated_qo_indptr, gated_kv_indptr, flags):
    raise RuntimeError("kdtree::gate: there are no CUDA graphs in the light test engine")


def compare(ours, engines, kv_indptr, layer, accum, workspace, enable=None, max_ulp=4.0, mean_abs=0.0005):
    if enable is not None and not int(enable):
        return
    mine, theirs = ours._values(), engines._values()
    delta, ulp, worst = 0.0, 0.0, -1
    total = 0.0
    if mine != theirs:
        batch = len(kv_indptr) - 1
        for row in range(len(mine) // _V_DIM):
            want = theirs[row * _V_DIM:(row + 1) * _V_DIM]
            difference = [abs(a - b) for a, b in zip(mine[row * _V_DIM:(row + 1) * _V_DIM], want)]
            total += sum(difference)
            largest = max(difference)
            magnitude = max(map(abs, want)) or 2.0**-126
            unit = math.ldexp(1.0, max(math.frexp(magnitude)[1] - 1, -126) - _DIGITS[engines.dtype.name])
            delta = max(delta, largest)
            if largest / unit > ulp:
                ulp, worst = largest / unit, row * batch // (len(mine) // _V_DIM)
    _accumulate(accum, kv_indptr.tolist(), layer, delta, ulp, worst, total / len(mine), max_ulp, mean_abs)


def _accumulate(accum, bounds, layer, delta, ulp, worst, mean, max_ulp, mean_abs):
    memory, batch = accum._storage, len(bounds) - 1
    (sequence, compares, mismatches, skipped, max_abs, largest_ulp, sum_mean, longest, worst_layer,
     worst_request) = _HEAD.unpack_from(memory)
    struct.pack_into("<Q", memory, 0, sequence + 1)
    if ulp > largest_ulp:
        largest_ulp, worst_layer, worst_request = ulp, layer, worst
    longest = max(longest, *(b - a for a, b in itertools.pairwise(bounds)))
    wrong = ulp > max_ulp or mean > mean_abs
    at = 128 + 8 * (batch if batch <= _MAX_BATCH else 0)
    struct.pack_into("<Q", memory, at, struct.unpack_from("<Q", memory, at)[0] + 1)
    _HEAD.pack_into(memory, 0, sequence + 1, compares + 1, mismatches + wrong, skipped, max(max_abs, delta),
                    largest_ulp, sum_mean + mean, longest, worst_layer, worst_request)
    struct.pack_into("<Q", memory, 0, sequence + 2)


for _op in (verify_attn_workspace_bytes, verify_attn, gate, compare_workspace_bytes, compare):
    registry[f"kdtree::{_op.__name__}"] = _op
assert torch.__version__.endswith("+light")
