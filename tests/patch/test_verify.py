# SPDX-License-Identifier: Apache-2.0
"""The verify path against SGLang's own TritonAttnBackend and Triton kernel, on the CPU in fp16, with numbers.

Importing SGLang takes seconds and 1.1 GB, so each process answers many questions; the tests read its answers."""
import os
from pathlib import Path

import pytest

from patch_rig import HERE, PREAMBLE, SHOW, Rig, ask
from kdtree_patch import stats_format as f

ROOT = HERE.parent.parent
MODES = PREAMBLE + """
for masked in (True, False):
    for drafts in (5, 33):
        key = f"{'tree' if masked else 'causal'} {drafts}"
        facts[key] = {}
        for mode in ("off", "validate", "on"):
            scene = Scene(masked=masked, drafts=drafts)
            PATCH.ready(); PATCH.set_mode(f.MODES[mode])
            facts[key][mode] = [scene.error(), scene.pool.writes,
                                torch.equal(scene.pool.rows[450:450 + len(scene.k)], scene.k)]
facts["stats"] = stats()
scene = Scene(); PATCH.set_mode(f.ON)
scene.batch._attn_output = torch.full((len(scene.q), 2 * 512), 9.0, dtype=torch.float16)
out = scene.call()
facts["attn_output"] = [out.data_ptr() == scene.batch._attn_output.data_ptr(), float((out.float() - scene.want()).abs().max())]
scene = Scene(); PATCH.set_mode(f.ON)
scene.call(save_kv_cache=False)
facts["unsaved_writes"] = scene.pool.writes
with torch.inference_mode():
    facts["inference_mode"] = [(PATCH.set_mode(mode), Scene().error())[1] for mode in (f.VALIDATE, f.ON)]
scene = Scene(dtype=torch.float32)
facts["fp32"] = scene.error()
scene = Scene(batch=1, prefix=1); scene.pool.rows[450:] = float("nan")
facts["slots_of_others_nan"] = scene.error()
calls = PATCH.counters.calls_kernel
scene.batch.forward_mode = ForwardMode.EXTEND
scene.call()
facts["extend_is_not_looked_at"] = [PATCH.counters.calls_kernel - calls, sum(PATCH.counters.handed_back)]
scene = Scene()
facts["instance_restored"] = scene.backend.extend_attention_fwd
scene.call()
facts["instance_restored"] = scene.backend.extend_attention_fwd is facts["instance_restored"]
""" + SHOW

BACKS = PREAMBLE + """
PATCH.ready(); PATCH.set_mode(f.ON)
import dataclasses
from sglang.srt.layers.radix_attention import AttentionType

def attempt(name, change):
    scene = Scene()
    before = list(PATCH.counters.handed_back), PATCH.counters.calls_kernel
    change(scene)
    seen = []
    real = scene.backend.extend_attention_fwd
    if not getattr(scene, "run_engine", True):
        scene.backend.extend_attention_fwd = lambda *a, **k: seen.append(1)
        # the stand-in below is what is called; keep the real one's signature
        import functools
        functools.update_wrapper(scene.backend.extend_attention_fwd, real)
    try:
        scene.call(**getattr(scene, "keywords", {}))
        error = ""
    except Exception as e:
        error = type(e).__name__ + ": " + str(e)[:80]
    moved = [i for i in range(32) if PATCH.counters.handed_back[i] != before[0][i]]
    facts[name] = [moved, PATCH.counters.calls_kernel - before[1], scene.pool.writes, len(seen), error]

def field(**changes):
    def change(scene):
        scene.backend.forward_metadata = dataclasses.replace(scene.backend.forward_metadata, **changes)
    return change

def on(what, quiet=False, keywords=None, **changes):
    def change(scene):
        target = scene if what == "scene" else getattr(scene, what)
        for name, value in changes.items():
            setattr(target, name, value)
        scene.run_engine = not quiet
        scene.keywords = keywords or {}
    return change

def together(*changes):
    return lambda scene: [change(scene) for change in changes]

attempt("eligible", lambda scene: None)
attempt("no_metadata", together(on("scene", quiet=True), on("backend", forward_metadata=None)))
attempt("not_mla", on("backend", quiet=True, use_mla=False))
attempt("not_mla_heads", on("layer", quiet=True, tp_k_head_num=2))
attempt("attention_type", on("layer", quiet=True, attn_type=AttentionType.ENCODER_ONLY))
attempt("attention_type_cross", on("layer", quiet=True, is_cross_attention=True))
attempt("attention_type_draft", on("backend", is_draft_runner=True))
attempt("attention_type_bidirectional", on("layer", quiet=True, attn_type=AttentionType.DECODER_BIDIRECTIONAL))
attempt("sinks", on("scene", quiet=True, keywords={"sinks": torch.zeros(2)}))
attempt("score_mod", on("scene", quiet=True, keywords={"score_mod": 1}))
attempt("score_mod_aux", on("scene", quiet=True, keywords={"aux_tensors": [1]}))
attempt("logit_cap", on("layer", logit_cap=30.0, logit_capping_method="tanh"))
attempt("sliding_window", together(on("layer", quiet=True, sliding_window_size=4)))
attempt("temperature", on("layer", quiet=True, xai_temperature_len=8))
attempt("deterministic", together(on("backend", enable_deterministic=True), lambda scene: setattr(
    scene.backend, "_forward_extend_unified", lambda q, o, *a, **k: o)))
attempt("context_parallel", together(on("backend", dcp_size=2, dcp_rank=0, _set_kv_buffer=lambda *a, **k: None),
        lambda scene: setattr(scene.backend, "_forward_extend_dcp", lambda q, *a, **k: torch.zeros(10, 1024))))
class SharedPool:
    def __init__(self, scene): self.rows = scene.pool.rows
    get_key_buffer = lambda self, i: self.rows
    get_value_buffer = lambda self, i: self.rows[..., :512]
    get_kv_buffer = lambda self, i: (self.rows, self.rows[..., :512])
attempt("shared_kv", together(on("scene", k=None, v=None), lambda scene: setattr(
    scene.backend, "token_to_kv_pool", SharedPool(scene))))
def other_values(scene): scene.pool.get_value_buffer = lambda i: scene.pool.rows[..., :512].clone()
attempt("kv_layout", other_values)
def four_dim(scene):
    scene.run_engine = False
    scene.pool.get_key_buffer = lambda i: scene.pool.rows.view(-1, 1, 1, 576)
attempt("kv_layout_4d", four_dim)
def scaled(by): return on("layer", k_scale=torch.tensor(by), v_scale=torch.tensor(by), k_scale_float=by, v_scale_float=by)
attempt("kv_dtype_scale", scaled(2.0))
attempt("kv_scale_of_one_is_fine", scaled(1.0))
def fp8(scene):
    scene.run_engine = False
    rows = scene.pool.rows.to(torch.float8_e4m3fn)
    scene.pool.get_key_buffer, scene.pool.get_value_buffer = lambda i: rows, lambda i: rows[..., :512]
attempt("kv_dtype_fp8", fp8)
def double(scene):
    scene.run_engine = False
    for name in ("q", "k", "v"): setattr(scene, name, getattr(scene, name).double())
    scene.pool.rows = scene.pool.rows.double()
attempt("dtype", double)
attempt("shape", field(max_extend_len=4))
attempt("shape_many", together(on("scene", quiet=True), field(max_extend_len=129)))
attempt("mask_short", together(on("scene", quiet=True), lambda scene: field(
    custom_mask=scene.backend.forward_metadata.custom_mask[:-1])(scene)))
attempt("mask_type", together(on("scene", quiet=True), lambda scene: field(
    custom_mask=scene.backend.forward_metadata.custom_mask.int())(scene)))
attempt("mask_long_is_fine", lambda scene: field(custom_mask=torch.cat(
    [scene.backend.forward_metadata.custom_mask, torch.zeros(100, dtype=torch.bool)]))(scene))
attempt("mask_bytes_are_fine", lambda scene: field(
    custom_mask=scene.backend.forward_metadata.custom_mask.to(torch.uint8))(scene))
attempt("qo_int64_is_fine", lambda scene: field(
    qo_indptr=scene.backend.forward_metadata.qo_indptr.long())(scene))
def newer_kernel(scene):
    def newer(q_extend, k_extend, v_extend, o_extend, k_buffer, v_buffer, qo_indptr, kv_indptr, kv_indices,
              custom_mask, is_causal, mask_indptr, max_len_extend, k_scale, v_scale, sm_scale=None, logit_cap=0.0,
              sliding_window_size=-1, sinks=None, window_kv_offsets=None, xai_temperature_len=-1, page_size=1,
              score_mod=None, aux_tensors=None, brand_new=7):
        raise AssertionError("the engine's kernel was called")
    scene.backend.extend_attention_fwd = newer
attempt("signature_default_is_fine", newer_kernel)
def starred(scene): scene.backend.extend_attention_fwd = lambda *a, **k: None
attempt("signature", starred)
attempt("signature_own_way", together(on("backend", use_verify_splitkv=True, verify_splitkv_fwd=lambda *a, **k: True),
        lambda scene: setattr(scene.backend, "req_to_token_pool", SimpleNamespace(size=4))))
os.environ["STAND_IN_FAULT"] = "raises"
attempt("error", lambda scene: None)
os.environ["STAND_IN_FAULT"] = ""
facts["stats"] = stats()
""" + SHOW

FAULTS = """
from kdtree_patch.compare import Accumulator
PATCH.set_mode(f.VALIDATE)
for fault in ("", "prefix_only", "mask_stride"):
    os.environ["STAND_IN_FAULT"] = fault
    PATCH.kernel.accumulator = Accumulator()
    error = Scene().error()
    found = stats()
    facts[fault or "none"] = [error, found["compares"], found["mismatches"], found["max_abs"], found["max_ulp"],
                              found["max_mean_ulp"], found["worst_layer"]]
os.environ["STAND_IN_FAULT"] = "prefix_only"
PATCH.set_mode(f.ON)
facts["on_with_fault"] = Scene().error()
"""

PARTS = PREAMBLE + """
from sglang.srt.layers.moe.topk import TopKConfig, select_experts
from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator
from sglang.srt.runtime_context import get_parallel
from kdtree_patch.rank import read_ranks

facts["ranks_before"] = vars(read_ranks())
with get_parallel().override(tp_rank=1, tp_size=2, moe_ep_rank=1, moe_ep_size=2):
    allocator = TokenToKVPoolAllocator(64, torch.float16, "cpu", None, False)
    facts["state_after_allocator"] = PATCH.state
first = allocator.alloc(40)
allocator.free(first[torch.randperm(40)])
again = allocator.alloc(60)
facts["sorted"] = [allocator.need_sort, bool((again.diff() > 0).all()), PATCH.sort_state]

logits = torch.full((3, 8), -9.0)
logits[:, :2] = 9.0
config = TopKConfig(top_k=2, renormalize=True, torch_native=True)
wanted = TopKConfig(top_k=2, renormalize=True, torch_native=True, allow_routed_experts_capture=False)
def layers():
    global out
    for layer in (1, 2):
        out = select_experts(torch.zeros(3, 16), logits, config, layer_id=layer)
        select_experts(torch.zeros(3, 16), logits.flip(1), wanted, layer_id=layer)
one_pass(layers, 3)
one_pass(layers, 3, ForwardMode.EXTEND)  # a prefill
one_pass(layers, 2)  # and a row of padding
facts["ids"] = out.topk_ids.sort(1)[0].tolist()
import sglang.srt.layers.moe.topk as topk
shared = TopKConfig(top_k=3, num_fused_shared_experts=1)
router = topk.capture_routed_experts_if_allowed
routed = lambda *a, **k: router(shared, 1, torch.tensor([[6, 7, 8]] * 2))
topk._post_process_topk_ids = lambda **k: (routed(), k["topk_weights"], None)
try:
    one_pass(lambda: select_experts(torch.zeros(2, 16), logits[:2], config, layer_id=1), 2)
except AttributeError as error:  # the ids it returns are none
    facts["shared_run"] = str(error)
facts["stats"] = stats()
"""


@pytest.fixture(scope="module")
def modes(tmp_path_factory: pytest.TempPathFactory) -> dict:
    return ask(Rig(tmp_path_factory.mktemp("modes")), MODES)


FP8 = PREAMBLE + """
from kdtree_kernel.selftest import Case, reference
PATCH.ready(); PATCH.set_mode(f.ON)
def fp8(k_scale, v_scale, kind=torch.float8_e4m3fn, batch=2):
    scene = Scene(batch=batch)
    scene.pool.rows = scene.pool.rows.to(kind)
    for name, value in (("k_scale", k_scale), ("v_scale", v_scale)):
        setattr(scene.layer, name, None if value is None else torch.tensor(value))
        setattr(scene.layer, name + "_float", value)
    before = list(PATCH.counters.handed_back), PATCH.counters.calls_kernel
    calls, real = [], scene.backend.extend_attention_fwd
    import functools
    scene.backend.extend_attention_fwd = functools.wraps(real)(lambda *a, **k: calls.append(1))
    out = scene.call()
    case = Case("patch", torch.float16, [scene.prefix] * batch, scene.drafts, heads=scene.heads, kv="fp8_e4m3",
                k_scale=k_scale or 1.0, v_scale=v_scale or 1.0)
    want = reference(case, {"q": scene.q.view(-1, scene.heads, 576), "kv_pool": scene.pool.rows, "draft_rows": scene.k,
                            "kv_indices": scene.backend.forward_metadata.kv_indices,
                            "visible": [scene.mask[:, scene.prefix:]] * batch}, 0.1)
    off = ((out.double() - want).norm(dim=-1) / want.norm(dim=-1)).max() if not calls else 0.0
    moved = [i for i in range(32) if PATCH.counters.handed_back[i] != before[0][i]]
    return [moved, PATCH.counters.calls_kernel - before[1], float(off), len(calls)]
facts["plain"] = fp8(None, None)
facts["scaled"] = fp8(0.5, 0.25)
facts["no_scale"] = fp8(0.0, 1.0)
facts["e5m2"] = fp8(None, None, torch.float8_e5m2)
""" + SHOW


@pytest.fixture(scope="module")
def backs(tmp_path_factory: pytest.TempPathFactory) -> dict:
    return ask(Rig(tmp_path_factory.mktemp("backs")), BACKS)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict:
    return ask(Rig(tmp_path_factory.mktemp("parts")), PARTS + FAULTS + SHOW)


@pytest.mark.parametrize("case", ["tree 5", "tree 33", "causal 5", "causal 33"])
@pytest.mark.parametrize("mode", ["off", "validate", "on"])
def test_each_mode_answers_right_and_writes_kv_once(modes: dict, case: str, mode: str) -> None:
    error, writes, saved = modes[case][mode]
    assert error < 2e-3, "fp16 against fp32 at magnitude 1"
    assert (writes, saved) == (1, True)


def test_what_is_counted(modes: dict) -> None:
    found = modes["stats"]
    assert (found["calls_engine"], found["calls_kernel"], found["compares"]) == (8, 4, 4)
    assert (found["mismatches"], sum(found["handed_back"]), found["patch_state"]) == (0, 0, f.ACTIVE)
    assert 0 < found["max_ulp"] <= 4 and 0 < found["max_abs"] < 4e-3 and found["longest_prefix"] == 20
    assert 0 < found["sum_mean_ulp"] / 4 <= found["max_mean_ulp"] < 0.5
    assert (found["batches"], found["graphs"], found["device_name"]) == ([[2, [4, 12]]], 0, "cpu")
    assert found["kv_pairs"] > 0 and found["kv_contiguous_pairs"] < found["kv_pairs"]


def test_what_forward_extend_is_given_is_kept(modes: dict) -> None:
    same, error = modes["attn_output"]
    assert same and error < 2e-3
    assert modes["unsaved_writes"] == 0 and max(modes["inference_mode"]) < 2e-3
    assert modes["fp32"] < 1e-4
    assert modes["slots_of_others_nan"] < 2e-3
    assert modes["extend_is_not_looked_at"] == [0, 0]
    assert modes["instance_restored"] is True


REASONS = {
    "no_metadata": f.BACK_NO_METADATA, "not_mla": f.BACK_NOT_MLA, "not_mla_heads": f.BACK_NOT_MLA,
    "attention_type": f.BACK_ATTENTION_TYPE, "attention_type_cross": f.BACK_ATTENTION_TYPE,
    "attention_type_draft": f.BACK_ATTENTION_TYPE, "attention_type_bidirectional": f.BACK_ATTENTION_TYPE,
    "sinks": f.BACK_SINKS, "score_mod": f.BACK_SCORE_MOD, "score_mod_aux": f.BACK_SCORE_MOD,
    "logit_cap": f.BACK_LOGIT_CAP, "sliding_window": f.BACK_SLIDING_WINDOW, "temperature": f.BACK_TEMPERATURE,
    "deterministic": f.BACK_DETERMINISTIC, "context_parallel": f.BACK_CONTEXT_PARALLEL, "shared_kv": f.BACK_SHARED_KV,
    "kv_layout": f.BACK_KV_LAYOUT, "kv_layout_4d": f.BACK_KV_LAYOUT, "kv_dtype_scale": f.BACK_KV_DTYPE,
    "kv_dtype_fp8": f.BACK_KV_DTYPE, "dtype": f.BACK_DTYPE, "shape": f.BACK_SHAPE, "shape_many": f.BACK_SHAPE,
    "mask_short": f.BACK_MASK, "mask_type": f.BACK_MASK, "signature": f.BACK_SIGNATURE,
    "signature_own_way": f.BACK_SIGNATURE, "error": f.BACK_ERROR,
}


@pytest.mark.parametrize("name", sorted(REASONS))
def test_each_reason_to_hand_back(backs: dict, name: str) -> None:
    moved, kernel, writes, _, error = backs[name]
    assert (moved, kernel) == ([REASONS[name]], 0)
    assert writes <= 1
    if name != "no_metadata":  # without metadata the engine itself can't go on
        assert error == ""


@pytest.mark.parametrize("name", ["sinks", "score_mod", "temperature", "sliding_window", "kv_layout_4d", "kv_dtype_fp8",
                                  "dtype", "mask_short", "mask_type", "shape_many"])
def test_a_call_that_is_handed_back_reaches_the_engines_kernel_once(backs: dict, name: str) -> None:
    assert backs[name][3] == 1


@pytest.mark.parametrize("name", ["eligible", "kv_scale_of_one_is_fine", "mask_long_is_fine", "mask_bytes_are_fine", "qo_int64_is_fine",
                                  "signature_default_is_fine"])
def test_what_is_not_handed_back(backs: dict, name: str) -> None:
    assert backs[name] == [[], 1, 1, 0, ""]


def test_every_reason_of_the_format_is_provoked_somewhere() -> None:
    only_in_graphs = {f.BACK_WORKSPACE}  # test_graphs.py
    assert set(REASONS.values()) | only_in_graphs | {f.BACK_NOT_VERIFY} == set(range(len(f.BACK_NAMES)))


def test_validate_catches_the_planted_faults_with_numbers(parts: dict) -> None:
    error, compares, mismatches, max_abs, max_ulp, mean, layer = parts["none"]
    assert (compares, mismatches) == (1, 0) and max_ulp <= 4 and 0 < mean <= 0.5 and error < 2e-3
    for fault in ("prefix_only", "mask_stride"):
        error, compares, mismatches, max_abs, max_ulp, mean, layer = parts[fault]
        assert error < 2e-3, "validate returns the engine's answer"
        assert (compares, mismatches, layer) == (1, 1, 0), fault
        assert max_ulp > 100 and max_abs > 0.05 and mean > 5, fault
    assert parts["on_with_fault"] > 0.05, "the fault is real: on would have shown it"


def test_sglangs_own_allocator_router_and_ranks(parts: dict) -> None:
    assert parts["ranks_before"]["tp_rank"] == -1, "no group is up: nothing is guessed"
    assert parts["state_after_allocator"] == f.ACTIVE
    assert parts["sorted"] == [True, True, 1]
    assert parts["ids"] == [[0, 1]] * 3
    found = parts["stats"]
    assert [found[n] for n in ("tp_rank", "tp_size", "moe_ep_rank", "moe_ep_size")] == [1, 2, 1, 2]
    assert [found[n] for n in ("moe_layers", "moe_experts", "moe_top_k", "moe_first_layer")] == [2, 8, 2, 1]
    assert (found["moe_steps"], found["moe_tokens"]) == (3, 3 + 2 + 2)
    assert found["sections"]["1"] == [[5, 5, 0, 0, 0, 0, 2, 2], [5, 5, 0, 0, 0, 0, 0, 0]], "shared expert 8 left out"
    assert found["sections"]["2"] == [[6], [4]] and found["sections"]["3"] == [[3], [2]]
    assert found["sections"]["4"] == [[1, 2], [0, 2]], "steps in which a half of the experts got no token"


@pytest.fixture(scope="module")
def real_library(tmp_path_factory: pytest.TempPathFactory) -> Rig:
    folder = Path(os.environ.get("KDTREE_BUILD", ROOT / "build" / "gpu")) / "kernel"
    if not (folder / "libkdtree_torch.so").exists():
        pytest.skip(f"no libkdtree_torch.so in {folder}: build it, or name the build folder in KDTREE_BUILD")

    class RealRig(Rig):
        kernel_package = ROOT / "kernel" / "python" / "kdtree_kernel"
        library_bytes = (folder / "libkdtree_torch.so").read_bytes()

    rig = RealRig(tmp_path_factory.mktemp("real"))
    (rig.library.parent / "libkdtree.so").write_bytes((folder / "libkdtree.so").read_bytes())
    return rig


def test_the_real_op_under_sglangs_own_class(real_library: Rig) -> None:
    import test_graphs
    found = ask(real_library, MODES.replace(SHOW, test_graphs.SETUP + test_graphs.WALK + SHOW))
    for name in ("warm_up", "capture", *(f"replay {mode}" for mode in (f.OFF, f.VALIDATE, f.ON))):
        assert found[name][0] < 2e-3, name
    for case in ("tree 5", "tree 33", "causal 5", "causal 33"):
        for mode in ("off", "validate", "on"):
            error, writes, saved = found[case][mode]
            assert error < 2e-3 and (writes, saved) == (1, True), (case, mode)
    assert (found["stats"]["compares"], found["stats"]["mismatches"], found["stats"]["calls_kernel"]) == (4, 0, 4)
    assert max(found["inference_mode"]) < 2e-3 and found["fp32"] < 1e-4 and found["slots_of_others_nan"] < 2e-3


def test_fp8_kv_is_served_where_the_selftest_proved_it(real_library: Rig) -> None:
    real_library.write_manifest(proven_kv=["fp8_e4m3"])
    found = ask(real_library, FP8)
    real_library.write_manifest(proven_kv=[])
    for name in ("plain", "scaled"):
        moved, kernel, off, engines = found[name]
        assert (moved, kernel, engines) == ([], 1, 0) and off < 2e-3, (name, found[name])
    for name in ("no_scale", "e5m2"):
        assert found[name][:2] == [[f.BACK_KV_DTYPE], 0] and found[name][3] == 1, name
