# SPDX-License-Identifier: Apache-2.0
"""torch.ops.kdtree in plain PyTorch, under the real schema, with faults to plant: STAND_IN_FAULT =
prefix_only, mask_stride, raises, no_load. For tests of the patch on the CPU; says nothing about the real kernel."""
import os
import struct

import torch

_SCHEMAS = (
    "verify_attn(Tensor q, Tensor? k_draft, Tensor(a!) out, Tensor kv_pool, Tensor qo_indptr, Tensor kv_indptr, "
    "Tensor kv_indices, Tensor? custom_mask, Tensor? mask_indptr, Tensor? out_cache_loc, Tensor(b!) workspace, "
    "int draft_tokens, float sm_scale, Tensor? enable=None, Tensor(c!)? out_scratch=None, int nsplit=0) -> ()",
    "verify_attn_workspace_bytes(int batch, int draft_tokens, int heads, Tensor like, int nsplit=0) -> int",
    "gate(Tensor(a!) word, Tensor qo_indptr, Tensor kv_indptr, Tensor(b!) gated_qo_indptr, Tensor(c!) gated_kv_indptr, "
    "Tensor(d!) flags) -> ()",
    "compare(Tensor ours, Tensor engines, Tensor kv_indptr, int layer, Tensor(a!) accum, Tensor(b!) workspace, "
    "Tensor? enable=None, float max_ulp=4.0, float mean_ulp=0.5) -> ()",
    "compare_workspace_bytes(int tokens, Tensor like) -> int",
    "tick(Tensor(a!) word, Tensor like) -> ()",
    "slots(Tensor kv_indptr, Tensor kv_indices, Tensor(a!) counts, Tensor? enable=None, int max_slots=65536) -> ()",
    "moe_table_bytes(int layers, int experts, int ranks, Tensor like) -> int",
    "moe_begin(Tensor(a!) table, int layers, int experts, int ranks, int rows) -> ()",
    "moe_count(Tensor(a!) table, int layers, int experts, int ranks, int layer, Tensor ids) -> ()",
    "moe_end(Tensor(a!) table, int layers, int experts, int ranks, Tensor(b!) copy, int first, int last) -> ()",
)
_HEAD = struct.Struct("<QQQQdddqiiiiqd")
calls: list[str] = []


def _fault() -> str:
    return os.environ.get("STAND_IN_FAULT", "")


def verify_attn(q, k_draft, out, kv_pool, qo_indptr, kv_indptr, kv_indices, custom_mask, mask_indptr, out_cache_loc,
                workspace, draft_tokens, sm_scale, enable=None, out_scratch=None, nsplit=0):
    """As kernel/include/kdtree/verify_attn.h says, in fp32."""
    calls.append("verify_attn")
    if _fault() == "raises":
        raise RuntimeError("stand-in: raises, as asked")
    wanted = 1 if enable is None else int(enable[0])
    if wanted == 0:
        return
    target = out_scratch if wanted == 2 and out_scratch is not None else out
    pool, n = kv_pool.reshape(kv_pool.shape[0], -1), draft_tokens
    for b in range(qo_indptr.shape[0] - 1):
        slots = kv_indices[int(kv_indptr[b]):int(kv_indptr[b + 1])].long()
        rows, prefix = slice(int(qo_indptr[b]), int(qo_indptr[b + 1])), slots.shape[0]
        keys = torch.cat([pool[slots], k_draft.reshape(-1, 576)[rows]]).float()
        seen = torch.ones(n, prefix + n, dtype=torch.bool)
        if custom_mask is None:
            seen[:, prefix:] = torch.tril(torch.ones(n, n, dtype=torch.bool))
        else:
            stride = prefix if _fault() == "mask_stride" else prefix + n
            bits = custom_mask.view(torch.uint8)
            for i in range(n):
                at = int(mask_indptr[b]) + i * stride + prefix
                seen[i, prefix:] = bits[at:at + n] != 0
        if _fault() == "prefix_only":
            seen[:, prefix:] = False
        scores = torch.einsum("nhd,kd->hnk", q[rows].float(), keys) * sm_scale
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        target.view(q.shape[0], -1, 512)[rows] = torch.einsum("hnk,kd->nhd", weights, keys[:, :512]).to(out.dtype)


def gate(word, qo_indptr, kv_indptr, gated_qo_indptr, gated_kv_indptr, flags):
    """As kernel/include/kdtree/gate.h says."""
    calls.append("gate")
    raw = bytearray(word.view(torch.uint8).tolist())
    mode = struct.unpack_from("<I", raw)[0]
    at = 8 + 8 * mode
    struct.pack_into("<Q", raw, at, struct.unpack_from("<Q", raw, at)[0] + 1)
    word.view(torch.uint8)[8:] = torch.tensor(list(raw[8:]), dtype=torch.uint8)
    engine = 0 if mode == 2 else 1
    gated_qo_indptr.copy_(qo_indptr * engine)
    gated_kv_indptr.copy_(kv_indptr * engine)
    look, looked = struct.unpack_from("<I", raw, 4)[0], struct.unpack_from("<I", raw, 32)[0]
    word.view(torch.uint8)[32:36] = word.view(torch.uint8)[4:8]
    flags.copy_(torch.tensor([(0, 2, 1)[mode], int(mode == 1), engine, mode, int(look != looked), 0, 0, 0],
                             dtype=torch.int32))


def tick(word, like):
    """As gate.h says."""
    calls.append("tick")
    word.view(torch.int64)[5] += 1


def slots(kv_indptr, kv_indices, counts, enable=None, max_slots=65536):
    """As kernel/include/kdtree/slots.h says."""
    if enable is not None and int(enable[0]) == 0:
        return
    words, bounds = counts.view(torch.int64), kv_indptr.tolist()
    for start, end in zip(bounds, bounds[1:]):
        gaps = kv_indices[start:min(end, start + max(2, max_slots // (len(bounds) - 1)))].diff()
        words[1] += gaps.numel()
        words[2] += (gaps == 1).sum()
    words[0] += 2
    words[3] += 1


def moe_table_bytes(layers, experts, ranks, like):
    return 64 + 8 * layers * (experts + 3 + 2 * ranks)


def moe_begin(table, layers, experts, ranks, rows):
    """As kernel/include/kdtree/moe.h says."""
    words = table.view(torch.int64)
    words[1] += rows > 0
    words[2] += rows
    words[3] = rows


def moe_count(table, layers, experts, ranks, layer, ids):
    """As moe.h says."""
    words = table.view(torch.int64)
    rows = int(words[3])
    if not rows:
        return
    chosen = ids[:rows].flatten().long()
    counts = torch.bincount(chosen[(chosen >= 0) & (chosen < experts)], minlength=experts)
    parts = words[8:].split([layers * experts, layers, layers, layers, layers * ranks, layers * ranks])
    parts[0].view(layers, experts)[layer] += counts
    parts[1][layer] += (counts > 0).sum()
    parts[2][layer] += 1
    if ranks:
        loads = counts.view(ranks, -1).sum(1)
        fullest = loads == max(int(loads.max()), 1)
        parts[3][layer] += loads.max()
        parts[4].view(layers, ranks)[layer] += loads == 0
        parts[5].view(layers, ranks)[layer] += fullest * (720720 // max(int(fullest.sum()), 1))


def moe_end(table, layers, experts, ranks, copy, first, last):
    """As moe.h says."""
    table.view(torch.int64)[3] = 0
    copy.view(torch.int64)[1:] = table.view(torch.int64)[1:]
    copy.view(torch.int64)[0] += 2


def compare(ours, engines, kv_indptr, layer, accum, workspace, enable=None, max_ulp=4.0, mean_ulp=0.5):
    """As kernel/include/kdtree/compare.h says."""
    calls.append("compare")
    if enable is not None and int(enable[0]) == 0:
        return
    mine, theirs = ours.view(-1, 512).double(), engines.view(-1, 512).double()
    good = theirs.isfinite()
    gap = torch.where(good, (mine - theirs).abs().nan_to_num(nan=float("inf")), 0.0)
    info = torch.finfo(ours.dtype)
    size = theirs.where(good, 0.0).abs().amax(1).clamp(min=info.smallest_normal)
    unit = info.eps * torch.exp2(torch.floor(torch.log2(size)))
    ulp = float((gap.amax(1) / unit).amax())
    raw = bytearray(accum.tolist())
    sequence, compares, wrong, skipped, top, top_ulp, total, longest, *worst, top_mean = _HEAD.unpack_from(raw)
    batch = kv_indptr.shape[0] - 1
    mean = float(((gap / unit[:, None]).view(batch, -1).sum(1) / good.view(batch, -1).sum(1).clamp(min=1)).amax())
    if ulp > top_ulp:
        row = int((gap.amax(1) / size).argmax())
        request = row // (gap.shape[0] // batch)
        worst = layer, request, batch, row % (gap.shape[0] // ours.shape[0]), int(kv_indptr.diff()[request])
    _HEAD.pack_into(raw, 0, sequence + 2, compares + 1, wrong + int(ulp > max_ulp or mean > mean_ulp),
                    skipped + int((~good).sum()), max(top, float(gap.amax())), max(top_ulp, ulp), total + mean,
                    max(longest, int(kv_indptr.diff().amax())), *worst, max(top_mean, mean))
    at = 128 + 8 * batch
    struct.pack_into("<Q", raw, at, struct.unpack_from("<Q", raw, at)[0] + 1)
    accum.copy_(torch.tensor(list(raw), dtype=torch.uint8))


_library: torch.library.Library | None = None


def load(path: str) -> None:
    """Registers the ops. Raises OSError where the file is missing or a fault asks for it."""
    global _library
    if not os.path.isfile(path) or _fault() == "no_load":
        raise OSError(f"{path}: cannot open shared object file")
    if _library is None:
        _library = torch.library.Library("kdtree", "DEF")
        for schema in _SCHEMAS:
            _library.define(schema)
        for op in (verify_attn, gate, tick, compare, slots, moe_table_bytes, moe_begin, moe_count, moe_end):
            _library.impl(op.__name__, op, "CPU")
        _library.impl("verify_attn_workspace_bytes", lambda *a: 0, "CPU")
        _library.impl("compare_workspace_bytes", lambda *a: 0, "CPU")
