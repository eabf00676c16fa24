# SPDX-License-Identifier: Apache-2.0
"""What kdtree relies on in SGLang: the one table of it. Data only; bind.py checks it against an engine's source.

A name of SGLang that kdtree_patch uses is in here (tests/contract/test_engine_uses.py finds the uses). `without` says what
kdtree does where an engine lacks the thing; "" = it can't do without, and refuses. Places are tried in order, the newest
version's first: SGLang has moved files.
"""
from dataclasses import dataclass

Place = tuple[str, ...]  # candidates of one file, relative to the sglang package

BACKEND: Place = ("srt/layers/attention/triton_backend.py",)
KERNEL: Place = ("kernels/ops/attention/extend_attention.py", "srt/layers/attention/triton_ops/extend_attention.py")
LAYER: Place = ("srt/layers/radix_attention.py",)
ALLOCATOR: Place = ("srt/mem_cache/allocator/token.py", "srt/mem_cache/allocator.py")
ALLOCATOR_BASE: Place = ("srt/mem_cache/allocator/base.py", "srt/mem_cache/allocator.py")
ROUTER: Place = ("srt/layers/moe/topk.py",)
RUNNER: Place = ("srt/model_executor/model_runner.py",)
BATCH: Place = ("srt/model_executor/forward_batch_info.py",)
CAPTURE: Place = ("srt/model_executor/runner_utils/capture_mode.py", "srt/model_executor/cuda_graph_runner.py")
GROUPS: Place = ("srt/distributed/parallel_state.py",)
PARALLEL: Place = ("srt/distributed/parallel_state_wrapper.py",)
CONTEXT: Place = ("srt/runtime_context.py",)
FIELDS: Place = ("srt/arg_groups/fields/parallel.py",)
PLUGINS: Place = ("srt/plugins/__init__.py",)


@dataclass(frozen=True)
class Function:
    """A function or method. leading: its first parameters, in this order; named: more that it takes. pinned: its source is
    part of the fingerprint."""

    place: Place
    name: str
    leading: tuple[str, ...] = ()
    named: tuple[str, ...] = ()
    pinned: bool = False
    without: str = ""


@dataclass(frozen=True)
class Attributes:
    """Attributes (fields, properties, methods) of an object; any of the classes may bring each. of: whose."""

    of: str
    names: tuple[str, ...]
    classes: tuple[tuple[Place, str], ...]
    without: str = ""


@dataclass(frozen=True)
class Call:
    """Every way from method `caller` to an attribute that it calls: what each parameter is given. means: parameter ->
    text that its argument's source contains."""

    place: Place
    caller: str
    attribute: str
    function: Function
    means: tuple[tuple[str, str], ...]
    without: str = ""


@dataclass(frozen=True)
class Value:
    """A constant, or what a variable starts as: "Class.NAME" or "NAME" is `value`."""

    place: Place
    name: str
    value: str | bool
    without: str = ""


# Parameters of extend_attention_fwd: the first thirteen, by position in every version.
KERNEL_LEADING = ("q_extend", "k_extend", "v_extend", "o_extend", "k_buffer", "v_buffer", "qo_indptr", "kv_indptr",
                  "kv_indices", "custom_mask", "is_causal", "mask_indptr", "max_len_extend")
# More of them that kdtree understands; of some only this value leaves the whole attention to the call.
KERNEL_NEUTRAL = {"skip_prefix_custom_mask": True, "window_kv_offsets": None, "lse_extend": None, "skip_prefix": False,
                  "skip_extend": False}
KERNEL_KNOWN = frozenset({"k_scale", "v_scale", "sm_scale", "logit_cap", "sliding_window_size", "sinks",
                          "xai_temperature_len", "page_size", "score_mod", "aux_tensors", "extend_seq_lens_cpu",
                          *KERNEL_NEUTRAL})
RANKS = ("tp_rank", "tp_size", "moe_ep_rank", "moe_ep_size")
GROUP_RANKS = {"tp": ("get_tensor_model_parallel_rank", "get_tensor_model_parallel_world_size"),
               "moe_ep": ("get_moe_expert_parallel_rank", "get_moe_expert_parallel_world_size")}

_FORWARD = Function(BACKEND, "TritonAttnBackend.forward_extend", ("self", "q", "k", "v", "layer", "forward_batch"),
                    pinned=True)
_KERNEL = Function(KERNEL, "extend_attention_fwd", KERNEL_LEADING,
                   ("sm_scale", "logit_cap", "sliding_window_size", "sinks", "skip_prefix_custom_mask"), pinned=True)
_NOT_SHOWN = "the rank is shown as unknown"

TABLE: tuple[Function | Attributes | Call | Value, ...] = (
    # verify.py, eligible.py: the attention path
    Function(BACKEND, "TritonAttnBackend.__init__", ("self", "model_runner"), pinned=True),
    _FORWARD,
    _KERNEL,
    Call(BACKEND, "TritonAttnBackend.forward_extend", "extend_attention_fwd", _KERNEL, (
        ("q_extend", "q"), ("k_extend", "k"), ("v_extend", "v"), ("o_extend", "o"),
        ("k_buffer", "get_key_buffer"), ("v_buffer", "get_value_buffer"), ("qo_indptr", "forward_metadata.qo_indptr"),
        ("kv_indptr", "kv_indptr"), ("kv_indices", "kv_indices"), ("custom_mask", "forward_metadata.custom_mask"),
        ("is_causal", "causal"), ("mask_indptr", "forward_metadata.mask_indptr"),
        ("max_len_extend", "forward_metadata.max_extend_len"), ("sm_scale", "layer.scaling"))),
    Attributes("backend", ("extend_attention_fwd", "forward_metadata", "use_mla", "enable_deterministic"),
               ((BACKEND, "TritonAttnBackend"),)),
    Attributes("backend", ("dcp_size",), ((BACKEND, "TritonAttnBackend"),),
               "this engine has no decode context parallelism"),
    Attributes("backend", ("is_draft_runner",), ((BACKEND, "TritonAttnBackend"),),
               "a draft model is told by its attention type"),
    Attributes("layer", ("layer_id", "qk_head_dim", "v_head_dim", "tp_k_head_num", "is_cross_attention", "attn_type",
                         "k_scale", "v_scale"), ((LAYER, "RadixAttention"),)),
    Value(LAYER, "AttentionType.DECODER", "decoder"),
    Attributes("forward_batch", ("forward_mode",), ((BATCH, "ForwardBatch"),)),
    Attributes("forward_batch", ("seq_lens_sum",), ((BATCH, "ForwardBatch"),),
               "on a GPU the mask's length is not checked"),
    Function(BATCH, "ForwardMode.is_target_verify", ("self",), pinned=True),
    Attributes("model_runner", ("is_draft_worker",), ((RUNNER, "ModelRunner"),),
               "a draft model's backend counts as the target's"),
    # only what they compute matters to the verify path, so only their source is kept
    Function(BACKEND, "TritonAttnBackend.init_forward_metadata", pinned=True),
    Function(BACKEND, "TritonAttnBackend._update_target_verify_buffers", pinned=True,
             without="these buffers are filled elsewhere"),
    Function(BACKEND, "TritonAttnBackend._build_cuda_graph_forward_metadata", pinned=True,
             without="this metadata is made elsewhere"),
    Function(KERNEL, "_fwd_kernel", pinned=True, without="the kernel has another name"),
    Function(BACKEND, "TritonAttnBackend._forward_extend_kernel", pinned=True,
             without="forward_extend calls the kernel itself"),
    # phase.py
    Value(CAPTURE, "is_capture_mode", False, "every captured call is handed back"),
    # sort.py
    Function(ALLOCATOR, "TokenToKVPoolAllocator.__init__", ("self", "size", "dtype", "device", "kvcache", "need_sort")),
    Function(ALLOCATOR, "TokenToKVPoolAllocator", pinned=True),
    Function(ALLOCATOR_BASE, "BaseTokenToKVPoolAllocator.merge_and_sort_free", pinned=True),
    Attributes("allocator", ("need_sort", "release_pages"),
               ((ALLOCATOR, "TokenToKVPoolAllocator"), (ALLOCATOR_BASE, "BaseTokenToKVPoolAllocator"))),
    # moe.py
    Function(ROUTER, "select_experts", (), ("router_logits", "topk_config", "layer_id", "expert_location_dispatch_info"),
             pinned=True),
    Function(ROUTER, "capture_routed_experts_if_allowed", ("topk_config", "layer_id", "topk_ids"), pinned=True,
             without="the ids that select_experts returns are counted"),
    Function(ROUTER, "_post_process_topk_ids", pinned=True, without="the router shows its ids elsewhere"),
    Attributes("select_experts' result", ("topk_ids",), ((ROUTER, "StandardTopKOutput"),)),
    Attributes("topk_config", ("top_k",), ((ROUTER, "TopKConfig"),)),
    Attributes("topk_config", ("num_fused_shared_experts",), ((ROUTER, "TopKConfig"),),
               "top_k counts the shared slots too"),
    Attributes("topk_config", ("allow_routed_experts_capture",), ((ROUTER, "TopKConfig"),),
               "a draft model's layers are told by its forward alone"),
    Function(BATCH, "ForwardMode.is_decode", ("self",), without="kdtree puts its router observer aside"),
    Function(RUNNER, "ModelRunner.forward", ("self", "forward_batch"), pinned=True,
             without="kdtree refuses as soon as the runner is imported"),
    Attributes("forward_batch", ("num_token_non_padded_cpu", "input_ids"), ((BATCH, "ForwardBatch"),),
               "kdtree puts its router observer aside"),
    Attributes("forward_batch", ("global_num_tokens_cpu",), ((BATCH, "ForwardBatch"),),
               "no pass is taken for one of several ranks' tokens"),
    # rank.py
    Attributes("model_runner", RANKS, ((RUNNER, "ModelRunner"), (PARALLEL, "ParallelState"), (CONTEXT, "ParallelContext"),
                                       (FIELDS, "Parallel")), _NOT_SHOWN),
    Attributes("model_runner", ("gpu_id",), ((RUNNER, "ModelRunner"), (PARALLEL, "ParallelState")), _NOT_SHOWN),
    Attributes("model_runner", ("device",), ((RUNNER, "ModelRunner"),), "the device is read from the first call"),
    Attributes("model_runner", ("ps",), ((RUNNER, "ModelRunner"),), "ranks are read from the runner or its context"),
    Function(CONTEXT, "get_parallel", without="ranks are read from the runner"),
    *(Function(GROUPS, name, without=_NOT_SHOWN) for names in GROUP_RANKS.values() for name in names),
    # the plugin entry point of kdtree-*.dist-info
    Value(PLUGINS, "GENERAL_PLUGINS_GROUP", "sglang.srt.plugins", "kdtree comes in by sitecustomize alone"),
)
