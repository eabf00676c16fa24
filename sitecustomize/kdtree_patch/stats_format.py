# SPDX-License-Identifier: Apache-2.0
"""The stats file's layout, as agent/stats/stats_abi.h defines it; tests/patch compares every offset with that header.

Little endian, naturally aligned, no implicit padding. Text is UTF-8, NUL-padded; NaN and -1 mean unknown where the
header says so.
"""
import math
import struct

MAGIC = b"KDTSTAT1"
VERSION = 3
HEADER_BYTES = 4096
MAX_BYTES = 16 * 1024 * 1024
MAX_SECTIONS = 16
MAX_BATCHES = 48
MAX_REASONS = 32
CHECKED_FROM = 40  # the crc32 covers [40, file_bytes)
SEQUENCE_AT = 24
CRC_AT = 32

PASSIVE, ACTIVE, REFUSED = 0, 1, 2
OFF, VALIDATE, ON = 0, 1, 2
MODES = {"off": OFF, "validate": VALIDATE, "on": ON}
MODE_NAMES = {value: name for name, value in MODES.items()}
STATE_NAMES = {PASSIVE: "passive", ACTIVE: "active", REFUSED: "refused"}

# enum kdtree_hand_back: index into handed_back[]
BACK_NAMES = ("not_verify", "no_metadata", "not_mla", "attention_type", "sinks", "score_mod", "logit_cap",
              "sliding_window", "temperature", "deterministic", "context_parallel", "shared_kv", "kv_layout", "kv_dtype",
              "dtype", "shape", "mask", "workspace", "error", "signature")
(BACK_NOT_VERIFY, BACK_NO_METADATA, BACK_NOT_MLA, BACK_ATTENTION_TYPE, BACK_SINKS, BACK_SCORE_MOD, BACK_LOGIT_CAP,
 BACK_SLIDING_WINDOW, BACK_TEMPERATURE, BACK_DETERMINISTIC, BACK_CONTEXT_PARALLEL, BACK_SHARED_KV, BACK_KV_LAYOUT,
 BACK_KV_DTYPE, BACK_DTYPE, BACK_SHAPE, BACK_MASK, BACK_WORKSPACE, BACK_ERROR, BACK_SIGNATURE) = range(len(BACK_NAMES))

(SECTION_EXPERT_TOKENS, SECTION_UNIQUE_EXPERTS, SECTION_LAYER_STEPS, SECTION_IDLE_RANKS, SECTION_PEAKS, SECTION_STRAGGLERS,
 SECTION_PASS_ROWS) = range(1, 8)
STRAGGLER_SHARE = 720720

# (name, struct format) in file order; batches, sections and the reserved tail follow.
FIELDS = (
    ("magic", "8s"), ("version", "I"), ("header_bytes", "I"), ("file_bytes", "Q"), ("sequence", "Q"), ("crc32", "I"),
    ("reserved0", "I"),
    ("pid", "Q"), ("pid_start_ticks", "Q"), ("boot_id", "40s"), ("updated_boottime_ns", "Q"), ("publications", "Q"),
    ("tp_rank", "i"), ("tp_size", "i"), ("moe_ep_rank", "i"), ("moe_ep_size", "i"), ("device_uuid", "64s"),
    ("device_name", "64s"),
    ("release_id", "64s"), ("engine_version", "64s"), ("engine_fingerprint", "64s"), ("torch_version", "32s"),
    ("library_sha256", "64s"), ("environment_sha256", "64s"),
    ("patch_state", "I"), ("mode", "I"), ("control_generation", "Q"), ("reason", "256s"), ("sort_state", "i"),
    ("graphs", "i"), ("start_mode", "i"), ("reserved2", "i"),
    ("calls_kernel", "Q"), ("calls_engine", "Q"), ("handed_back", f"{MAX_REASONS}Q"), ("compares", "Q"),
    ("mismatches", "Q"), ("max_abs", "d"), ("max_ulp", "d"), ("sum_mean_ulp", "d"),
    ("max_mean_ulp", "d"), ("longest_prefix", "Q"),
    ("worst_layer", "i"), ("worst_request", "i"), ("worst_batch", "i"), ("worst_head", "i"), ("worst_prefix", "Q"),
    ("kv_pairs", "Q"), ("kv_contiguous_pairs", "Q"),
    ("moe_layers", "I"), ("moe_experts", "I"), ("moe_top_k", "I"), ("moe_first_layer", "I"), ("moe_steps", "Q"),
    ("moe_tokens", "Q"),
    ("batch_count", "I"), ("section_count", "I"),
)
BATCH = struct.Struct("<IIQQ")  # batch, reserved, compares, calls
SECTION = struct.Struct("<IIQIIQ")  # kind, elem_bytes, offset, rows, cols, reserved


def _place() -> tuple[dict[str, tuple[int, struct.Struct]], int]:
    at, places = 0, {}
    for name, form in FIELDS:
        packer = struct.Struct("<" + form)
        places[name] = (at, packer)
        at += packer.size
    return places, at


PLACES, BATCHES_AT = _place()
SECTIONS_AT = BATCHES_AT + MAX_BATCHES * BATCH.size
RESERVED_AT = SECTIONS_AT + MAX_SECTIONS * SECTION.size

# What a field holds before anything is known; every other field starts at 0 or "".
UNKNOWN = {"tp_rank": -1, "tp_size": -1, "moe_ep_rank": -1, "moe_ep_size": -1, "sort_state": -1, "graphs": -1,
           "start_mode": -1, "max_abs": math.nan, "max_ulp": math.nan, "max_mean_ulp": math.nan,
           "worst_layer": -1, "worst_request": -1, "worst_batch": -1, "worst_head": -1}


def clip_text(text: str, size: int) -> bytes:
    """UTF-8 of `text`, at most `size` bytes, never ending inside a character."""
    raw = text.replace("\0", "?").encode("utf-8", "replace")
    return raw if len(raw) <= size else raw[:size].decode("utf-8", "ignore").encode("utf-8")


def put(buffer: bytearray, name: str, value: object) -> None:
    """Writes one header field into `buffer` (at least a header long). Errors: struct.error if it doesn't fit."""
    at, packer = PLACES[name]
    if isinstance(value, str):
        value = clip_text(value, packer.size)
    if isinstance(value, (list, tuple)):
        packer.pack_into(buffer, at, *value)
    else:
        packer.pack_into(buffer, at, value)


def get(buffer: bytes, name: str) -> object:
    """Reads one header field: int, float, str (NUL padding removed) or a tuple for arrays."""
    at, packer = PLACES[name]
    values = packer.unpack_from(buffer, at)
    if len(values) > 1:
        return values
    if isinstance(values[0], bytes):
        return values[0].split(b"\0", 1)[0].decode("utf-8", "replace")
    return values[0]
