# SPDX-License-Identifier: Apache-2.0
"""The library's fp64 reference, through the C ABI, against the selftest's torch one: two oracles that must agree."""

import ctypes
from pathlib import Path

import torch
from kdtree_kernel.selftest import Case, make_inputs

from scenes import SCALE, want

P, I16, I32, I64, F32 = ctypes.c_void_p, ctypes.c_int16, ctypes.c_int32, ctypes.c_int64, ctypes.c_float


class Params(ctypes.Structure):
    """struct kdtree_verify_attn_params."""

    _fields_ = [
        ("struct_bytes", ctypes.c_uint32), ("dtype", I16), ("kv_dtype", I16), ("batch", I32), ("draft_tokens", I32), ("heads", I32),
        ("nsplit", I32), ("sm_scale", ctypes.c_float), ("threads", I32), ("q", P), ("q_token_stride", I64),
        ("q_head_stride", I64), ("k_draft", P), ("k_draft_stride", I64), ("kv_pool", P), ("kv_slot_stride", I64),
        ("kv_slots", I32), ("k_scale", F32), ("out", P), ("out_token_stride", I64), ("out_head_stride", I64), ("out_scratch", P),
        ("qo_indptr", P), ("kv_indptr", P), ("kv_indices", P), ("out_cache_loc", P), ("qo_indptr_bits", I32),
        ("kv_indices_bits", I32), ("out_cache_loc_bits", I32), ("v_scale", F32), ("mask", P), ("mask_indptr", P),
        ("enable", P), ("workspace", P), ("workspace_bytes", I64),
    ]


def test_both_references_agree(library: str) -> None:
    abi = ctypes.CDLL(str(Path(library).with_name("libkdtree.so")))
    for dtype, code in ((torch.bfloat16, 0), (torch.float16, 1), (torch.float32, 2)):
        for source in ("array", "pool"):
            case = Case("reference", dtype, [40, 0, 17], 5, heads=2, draft_from=source)
            i = make_inputs(case, "cpu", 1)
            out = torch.empty(15, 2, 512, dtype=torch.float64)
            p = Params(struct_bytes=ctypes.sizeof(Params), dtype=code, batch=3, draft_tokens=5, heads=2, sm_scale=SCALE,
                       q=i["q"].data_ptr(), q_token_stride=1152, q_head_stride=576,
                       k_draft=i["k_draft"].data_ptr() if source == "array" else None, k_draft_stride=576,
                       kv_pool=i["kv_pool"].data_ptr(), kv_slot_stride=576, kv_slots=i["kv_pool"].size(0),
                       qo_indptr=i["qo_indptr"].data_ptr(), kv_indptr=i["kv_indptr"].data_ptr(),
                       kv_indices=i["kv_indices"].data_ptr(), out_cache_loc=i["out_cache_loc"].data_ptr(),
                       qo_indptr_bits=64, kv_indices_bits=64, out_cache_loc_bits=64,
                       mask=i["custom_mask"].data_ptr(), mask_indptr=i["mask_indptr"].data_ptr())
            assert abi.kdtree_verify_attn_fp64(ctypes.byref(p), ctypes.c_void_p(out.data_ptr())) == 0
            # sm_scale is a float in the struct and a double in torch
            assert float((out - want(case, i)).abs().max()) < 1e-6
