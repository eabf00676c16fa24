# SPDX-License-Identifier: Apache-2.0
"""Which verify calls kdtree's kernel may answer. Looks at shapes, types and flags, never at device data.

Reasons are BACK_* of stats_format; None = eligible. What is asked follows kernel/include/kdtree/verify_attn.h.
"""
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass

from . import stats_format as f
from .contract import KERNEL_KNOWN, KERNEL_LEADING, KERNEL_NEUTRAL

QK_DIM, V_DIM, MAX_DRAFT_TOKENS, MAX_HEADS, MAX_BATCH = 576, 512, 128, 128, 4096
_DTYPES = {"torch.bfloat16", "torch.float16"}
KV_TYPES = {"torch.float8_e4m3fn": "fp8_e4m3"}  # of a KV pool that isn't of q's type: its name in the manifest


@dataclass(frozen=True)
class Signature:
    """Parameter names in order, and their defaults, of the engine's extend_attention_fwd."""

    names: tuple[str, ...]
    defaults: dict[str, object]

    def bind(self, args: tuple, kwargs: dict[str, object]) -> dict[str, object] | None:
        """Arguments by name, in the signature's order; None if they don't fit."""
        if len(args) > len(self.names):
            return None
        bound = dict(self.defaults)
        bound.update(zip(self.names, args))
        taken = set(self.names[:len(args)])
        for name, value in kwargs.items():
            if name in taken or name not in self.names:
                return None
            bound[name] = value
        return {name: bound[name] for name in self.names} if len(bound) == len(self.names) else None


def read_signature(function: Callable) -> Signature:
    """Errors: ValueError or TypeError if it has no signature or takes *args."""
    parameters = inspect.signature(function).parameters
    if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters.values()):
        raise ValueError("extend_attention_fwd takes *args or **kwargs: its arguments can't be told apart")
    return Signature(tuple(parameters), {n: p.default for n, p in parameters.items() if p.default is not p.empty})


def check_layer(backend: object, layer: object, k: object, v: object) -> int | None:
    """What is known before the engine's forward_extend runs."""
    if getattr(backend, "forward_metadata", None) is None:
        return f.BACK_NO_METADATA
    if getattr(layer, "is_cross_attention", False) or getattr(backend, "is_draft_runner", False):
        return f.BACK_ATTENTION_TYPE
    kind = getattr(layer, "attn_type", "decoder")
    if str(getattr(kind, "value", kind)) != "decoder":
        return f.BACK_ATTENTION_TYPE
    if not getattr(backend, "use_mla", False) or (layer.qk_head_dim, layer.v_head_dim, layer.tp_k_head_num) != (
            QK_DIM, V_DIM, 1):
        return f.BACK_NOT_MLA
    if getattr(backend, "enable_deterministic", False):
        return f.BACK_DETERMINISTIC
    if getattr(backend, "dcp_size", 1) > 1:
        return f.BACK_CONTEXT_PARALLEL
    if k is None or v is None:
        return f.BACK_SHARED_KV
    return None


def check_call(bound: dict[str, object], seq_lens_sum: int | None,
               proven_kv: frozenset[str] = frozenset()) -> int | None:
    """What the call of extend_attention_fwd says. seq_lens_sum: sum of the prefixes if the host knows it, for the mask's
    length; on the CPU mask_indptr itself is read. proven_kv: values of KV_TYPES that the selftest has proven here."""
    for name, value in bound.items():
        if name in KERNEL_NEUTRAL and value is not KERNEL_NEUTRAL[name]:
            return f.BACK_SIGNATURE
    return (_check_flags(bound) or _check_tensors(bound) or _check_kv_type(bound, proven_kv)
            or _check_mask(bound, seq_lens_sum))


def check_signature(signature: Signature, bound: dict[str, object]) -> int | None:
    """A parameter that this version doesn't know may mean anything unless it was left at its default."""
    for name in signature.names[len(KERNEL_LEADING):]:
        if name not in KERNEL_KNOWN and bound[name] is not signature.defaults.get(name, bound):
            return f.BACK_SIGNATURE
    return None


def _check_flags(bound: dict[str, object]) -> int | None:
    if not bound["is_causal"]:
        return f.BACK_ATTENTION_TYPE
    if bound.get("sinks") is not None:
        return f.BACK_SINKS
    if bound.get("score_mod") is not None or bound.get("aux_tensors") is not None:
        return f.BACK_SCORE_MOD
    if (bound.get("logit_cap") or 0) > 0:
        return f.BACK_LOGIT_CAP
    if bound.get("sliding_window_size", -1) is not None and bound.get("sliding_window_size", -1) > -1:
        return f.BACK_SLIDING_WINDOW
    if (bound.get("xai_temperature_len") or 0) > 0:
        return f.BACK_TEMPERATURE
    return None


def kv_type(bound: dict[str, object]) -> str:
    """Of the pool: "" if it is of q's type, a value of KV_TYPES, or "unknown"."""
    pool = bound["k_buffer"].dtype
    return "" if pool == bound["q_extend"].dtype else KV_TYPES.get(str(pool), "unknown")


def scales(bound: dict[str, object]) -> tuple[float, float]:
    """k_scale and v_scale as the engine gives them to its own kernel; 1.0 where it gives none. TypeError, ValueError: not
    numbers of the host."""
    given = (bound.get("k_scale"), bound.get("v_scale"))
    if any(hasattr(one, "device") for one in given):
        raise TypeError("k_scale or v_scale is a tensor")
    k, v = (1.0 if one is None else float(one) for one in given)
    return k, v


def _check_kv_type(bound: dict[str, object], proven_kv: frozenset[str]) -> int | None:
    kind = kv_type(bound)
    try:
        k_scale, v_scale = scales(bound)
    except (TypeError, ValueError):
        return f.BACK_KV_DTYPE
    if not kind:
        return None if k_scale == v_scale == 1.0 else f.BACK_KV_DTYPE
    positive = all(0 < one < math.inf for one in (k_scale, v_scale))
    return None if kind in proven_kv and positive and str(bound["q_extend"].dtype) in _DTYPES else f.BACK_KV_DTYPE


def _check_tensors(bound: dict[str, object]) -> int | None:
    q, k, v, o = bound["q_extend"], bound["k_extend"], bound["v_extend"], bound["o_extend"]
    keys, values = bound["k_buffer"], bound["v_buffer"]
    if keys.dim() != 3 or tuple(keys.shape[1:]) != (1, QK_DIM) or keys.stride(2) != 1:
        return f.BACK_KV_LAYOUT
    if tuple(values.shape) != (keys.shape[0], 1, V_DIM) or values.stride(0) != keys.stride(0):
        return f.BACK_KV_LAYOUT
    if values.data_ptr() != keys.data_ptr():
        return f.BACK_KV_LAYOUT
    if keys.dtype != values.dtype:
        return f.BACK_KV_DTYPE
    if str(q.dtype) not in _DTYPES and not (str(q.dtype) == "torch.float32" and q.device.type == "cpu"):
        return f.BACK_DTYPE
    if k.dtype != q.dtype or v.dtype != q.dtype or o.dtype != q.dtype:
        return f.BACK_DTYPE
    batch, drafts = bound["qo_indptr"].shape[0] - 1, bound["max_len_extend"]
    rows, heads = q.shape[0], q.shape[1]
    if not isinstance(drafts, int) or not 1 <= drafts <= MAX_DRAFT_TOKENS or not 1 <= batch <= MAX_BATCH:
        return f.BACK_SHAPE
    if rows != batch * drafts or heads > MAX_HEADS or tuple(q.shape) != (rows, heads, QK_DIM):
        return f.BACK_SHAPE
    if tuple(o.shape) != (rows, heads, V_DIM) or tuple(k.shape) != (rows, 1, QK_DIM):
        return f.BACK_SHAPE
    if tuple(v.shape) != (rows, 1, V_DIM) or bound["kv_indptr"].shape[0] != batch + 1:
        return f.BACK_SHAPE
    return None


def _check_mask(bound: dict[str, object], seq_lens_sum: int | None) -> int | None:
    mask = bound["custom_mask"]
    if mask is None:
        return None
    starts = bound["mask_indptr"]
    batch, drafts = bound["qo_indptr"].shape[0] - 1, bound["max_len_extend"]
    if str(mask.dtype) not in ("torch.bool", "torch.uint8") or mask.dim() != 1 or mask.stride(0) != 1:
        return f.BACK_MASK
    if starts is None or str(starts.dtype) != "torch.int64" or starts.shape[0] < batch + 1:
        return f.BACK_MASK
    needed = None
    if starts.device.type == "cpu":
        needed = int(starts[batch])
    elif isinstance(seq_lens_sum, int):
        needed = drafts * (seq_lens_sum + batch * drafts)
    return f.BACK_MASK if needed is not None and mask.numel() < needed else None
