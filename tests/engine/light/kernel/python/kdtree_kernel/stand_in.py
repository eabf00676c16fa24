# SPDX-License-Identifier: Apache-2.0
"""torch.ops.kdtree in plain Python: the arithmetic of the light engine's own kernel, written a second time, and the
counters of kernel/include/kdtree/{compare,slots,moe}.h. Registers itself on import."""
import itertools
import math
import struct

import torch
from torch._ops import registry

_VALUES, _V_DIM, _MAX_BATCH = 4, 512, 512
_HEAD = struct.Struct("<QQQQdddqiiiiqd")
_SLOTS = struct.Struct("<QQQQ")
_MOE = struct.Struct("<QQQi")
_DIGITS = {"bfloat16": 7, "float16": 10, "float32": 23}


def verify_attn_workspace_bytes(batch, draft_tokens, heads, like, nsplit=0):
    return 16


def compare_workspace_bytes(tokens, like):
    return 0


def verify_attn(q, k_draft, out, kv_pool, qo_indptr, kv_indptr, kv_indices, custom_mask, mask_indptr, out_cache_loc,
                workspace, draft_tokens, sm_scale, enable=None, out_scratch=None, nsplit=0,
                k_scale=1.0, v_scale=1.0):
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


def tick(word, like):
    raise RuntimeError("kdtree::tick: there are no CUDA graphs in the light test engine")


def slots(kv_indptr, kv_indices, counts, enable=None, max_slots=65536):
    bounds, memory = kv_indptr.tolist(), counts._storage
    sequence, pairs, contiguous, looks = _SLOTS.unpack_from(memory)
    struct.pack_into("<Q", memory, 0, sequence + 1)
    share = max(2, max_slots // (len(bounds) - 1))
    for start, end in itertools.pairwise(bounds):
        own = kv_indices[start:min(end, start + share)].tolist()
        pairs += max(len(own) - 1, 0)
        contiguous += sum(b - a == 1 for a, b in itertools.pairwise(own))
    _SLOTS.pack_into(memory, 0, sequence + 1, pairs, contiguous, looks + 1)
    struct.pack_into("<Q", memory, 0, sequence + 2)


def moe_table_bytes(layers, experts, ranks, like):
    return 64 + 8 * layers * (experts + 3 + 2 * ranks)


def moe_begin(table, layers, experts, ranks, rows):
    sequence, steps, tokens, _ = _MOE.unpack_from(table._storage)
    _MOE.pack_into(table._storage, 0, sequence, steps + (rows > 0), tokens + rows, rows)


def moe_count(table, layers, experts, ranks, layer, ids):
    memory, rows = table._storage, _MOE.unpack_from(table._storage)[3]
    if rows <= 0:
        return
    chosen = [e for row in ids.tolist()[:rows] for e in row if 0 <= e < experts]
    unique = layers * experts
    for expert in chosen:
        _more(memory, layer * experts + expert)
    _more(memory, unique + layer, len(set(chosen)))
    _more(memory, unique + layers + layer)
    loads = [sum(expert * ranks // experts == rank for expert in chosen) for rank in range(ranks)]
    _more(memory, unique + 2 * layers + layer, max(loads, default=0))
    for rank, load in enumerate(loads):
        by_rank = unique + 3 * layers + layer * ranks + rank
        if load == 0:
            _more(memory, by_rank)
        elif load == max(loads):
            _more(memory, by_rank + layers * ranks, 720720 // loads.count(load))


def moe_end(table, layers, experts, ranks, copy, first, last):
    _, steps, tokens, _ = _MOE.unpack_from(table._storage)
    _MOE.pack_into(table._storage, 0, 0, steps, tokens, 0)
    sequence = struct.unpack_from("<Q", copy._storage)[0]
    struct.pack_into("<Q", copy._storage, 0, sequence + 1)
    copy._storage[8:] = table._storage[8:]
    struct.pack_into("<Q", copy._storage, 0, sequence + 2)


def _more(memory, counter, amount=1):
    at = 64 + 8 * counter
    struct.pack_into("<Q", memory, at, struct.unpack_from("<Q", memory, at)[0] + amount)


def compare(ours, engines, kv_indptr, layer, accum, workspace, enable=None, max_ulp=4.0, mean_ulp=0.5):
    if enable is not None and not int(enable):
        return
    mine, theirs = ours._values(), engines._values()
    delta, ulp, worst, head = 0.0, 0.0, -1, -1
    totals = [0.0] * (len(kv_indptr) - 1)
    if mine != theirs:
        batch, rows = len(kv_indptr) - 1, len(mine) // _V_DIM
        for row in range(rows):
            want = theirs[row * _V_DIM:(row + 1) * _V_DIM]
            difference = [abs(a - b) for a, b in zip(mine[row * _V_DIM:(row + 1) * _V_DIM], want)]
            largest = max(difference)
            magnitude = max(map(abs, want)) or 2.0**-126
            unit = math.ldexp(1.0, max(math.frexp(magnitude)[1] - 1, -126) - _DIGITS[engines.dtype.name])
            delta = max(delta, largest)
            totals[row * batch // rows] += sum(difference) / unit
            if largest / unit > ulp:
                ulp, worst, head = largest / unit, row * batch // rows, row % (rows // ours.shape[0])
    _accumulate(accum, kv_indptr.tolist(), layer, delta, ulp, worst, head, max(totals) * len(totals) / len(mine),
                max_ulp, mean_ulp)


def _accumulate(accum, bounds, layer, delta, ulp, worst, head, mean, max_ulp, mean_ulp):
    memory, batch = accum._storage, len(bounds) - 1
    sequence, compares, mismatches, skipped, max_abs, largest_ulp, sum_mean, longest, *named, top_mean = _HEAD.unpack_from(memory)
    struct.pack_into("<Q", memory, 0, sequence + 1)
    prefixes = [b - a for a, b in itertools.pairwise(bounds)]
    if ulp > largest_ulp:
        largest_ulp, named = ulp, (layer, worst, batch, head, prefixes[worst])
    longest = max(longest, *prefixes)
    wrong = ulp > max_ulp or mean > mean_ulp
    at = 128 + 8 * (batch if batch <= _MAX_BATCH else 0)
    struct.pack_into("<Q", memory, at, struct.unpack_from("<Q", memory, at)[0] + 1)
    _HEAD.pack_into(memory, 0, sequence + 1, compares + 1, mismatches + wrong, skipped, max(max_abs, delta),
                    largest_ulp, sum_mean + mean, longest, *named, max(top_mean, mean))
    struct.pack_into("<Q", memory, 0, sequence + 2)


for _op in (verify_attn_workspace_bytes, verify_attn, gate, tick, compare_workspace_bytes, compare, slots,
            moe_table_bytes, moe_begin, moe_count, moe_end):
    registry[f"kdtree::{_op.__name__}"] = _op
assert torch.__version__.endswith("+light")
