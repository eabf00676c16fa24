# SPDX-License-Identifier: Apache-2.0
"""SGLang's own objects of one rank, made as SGLang makes them: server arguments, process groups, KV pool, allocator,
TritonAttnBackend by its true constructor, ModelRunner.forward. Only what the backend reads of a ModelRunner is a
stand-in."""
from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from collections.abc import Callable
from types import SimpleNamespace

import torch
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.distributed import parallel_state
from sglang.srt.distributed.device_communicators import pynccl
from sglang.srt.distributed.parallel_state_wrapper import ParallelState
from sglang.srt.layers.attention.triton_backend import TritonAttnBackend
from sglang.srt.layers.moe.utils import initialize_moe_config
from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator
from sglang.srt.mem_cache.memory_pool import MLATokenToKVPool, ReqToTokenPool
from sglang.srt.model_executor.model_runner import ModelRunner
from sglang.srt.runtime_context import get_parallel, publish
from sglang.srt.server_args import ServerArgs

from serving.flags import Flags
from serving.rank import ep_rank

LATENT, ROPE = 512, 64  # MLA as in DeepSeek-V3 and Kimi K2


@dataclasses.dataclass(frozen=True)
class SglangRank:
    """The parts that a model needs. Tensors on `device`, KV in `dtype`."""

    device: str
    dtype: torch.dtype
    backend: TritonAttnBackend
    rows: ReqToTokenPool
    allocator: TokenToKVPoolAllocator
    pool: MLATokenToKVPool


class Runner(ModelRunner):
    """SGLang's own ModelRunner.forward around this engine's model; nothing else of it is made."""

    def __init__(self, model: Callable[[SimpleNamespace], torch.Tensor]):
        self._model = model
        self.forward_pass_id, self.is_draft_worker, self.enable_elastic_ep = 0, False, False
        self.msprobe_debugger = self.canary_manager = self.eplb_manager = self.decode_cuda_graph_runner = None

    def _forward_raw(self, forward_batch: SimpleNamespace, *more: object) -> SimpleNamespace:
        return SimpleNamespace(logits_output=self._model(forward_batch), can_run_graph=False)


def _model_folder(flags: Flags) -> str:
    """A folder with a config.json of DeepSeek-V3's shape. Gone with the process."""
    heads = flags.heads * flags.ranks
    config = dict(
        architectures=["DeepseekV3ForCausalLM"], model_type="deepseek_v3", torch_dtype="bfloat16", vocab_size=4096,
        hidden_size=2048, intermediate_size=4096, moe_intermediate_size=64, num_hidden_layers=flags.layers,
        first_k_dense_replace=1, moe_layer_freq=1, num_attention_heads=heads, num_key_value_heads=heads,
        q_lora_rank=512, kv_lora_rank=LATENT, qk_nope_head_dim=128, qk_rope_head_dim=ROPE, v_head_dim=128,
        n_routed_experts=flags.experts, n_shared_experts=1, num_experts_per_tok=8, n_group=1, topk_group=1,
        topk_method="noaux_tc", scoring_func="sigmoid", norm_topk_prob=True, routed_scaling_factor=2.5,
        hidden_act="silu", max_position_embeddings=131072, rope_theta=50000.0,
        rope_scaling=dict(type="yarn", factor=32.0, original_max_position_embeddings=4096, beta_fast=1.0,
                          beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0), bos_token_id=0, eos_token_id=1)
    folder = tempfile.mkdtemp(prefix="test-engine-")
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)
    return folder


def _server_args(flags: Flags, context: int) -> tuple[ServerArgs, ModelConfig]:
    folder = _model_folder(flags)
    try:
        args = ServerArgs(
            model_path=folder, load_format="dummy", skip_tokenizer_init=True, device=flags.device,
            dtype="float16" if flags.device == "cpu" else "bfloat16", attention_backend="triton", page_size=1,
            sampling_backend="pytorch", tp_size=flags.ranks, ep_size=flags.ep_size, disable_radix_cache=True,
            disable_cuda_graph=True, disable_shared_experts_fusion=True, context_length=context,
            max_running_requests=flags.max_running_requests, mem_fraction_static=flags.mem_fraction_static,
            speculative_algorithm="NGRAM", speculative_num_draft_tokens=flags.draft_tokens)
        return args, ModelConfig.from_server_args(args)
    finally:
        os.remove(os.path.join(folder, "config.json"))
        os.rmdir(folder)


def _join_groups(flags: Flags, rank: int, rendezvous: int) -> None:
    """SGLang's process groups over loopback. Returns when all ranks have joined.

    They tell who is who; this model needs no collective, so that gloo serves ranks that share a GPU, or have none.
    Errors: RuntimeError where the groups say another rank than this process was started as.
    """
    pynccl.PyNcclCommunicator = lambda **ignored: None
    parallel_state.set_custom_all_reduce(False)
    parallel_state.init_distributed_environment(
        world_size=flags.ranks, rank=rank, local_rank=rank, backend="gloo",
        distributed_init_method=f"tcp://127.0.0.1:{rendezvous}", timeout=300)
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=flags.ranks,
                                             expert_model_parallel_size=flags.ep_size)
    now = get_parallel()
    if (now.tp_rank, now.moe_ep_rank) != (rank, ep_rank(flags, rank)):
        raise RuntimeError(f"rank {rank} became TP{now.tp_rank} EP{now.moe_ep_rank}")


def join(flags: Flags, rank: int, rendezvous: int, context: int) -> tuple[ServerArgs, ModelConfig]:
    """Server arguments, published as a scheduler's, and the process groups. context -- longest sequence, tokens."""
    if flags.device == "cuda":
        if not torch.cuda.is_available():
            raise RuntimeError("--device cuda: torch sees no GPU here")
        torch.cuda.set_device(rank % torch.cuda.device_count())
    args, config = _server_args(flags, context)
    publish(args, role="scheduler")
    initialize_moe_config(args)
    _join_groups(flags, rank, rendezvous)
    return args, config


def make_cache(flags: Flags, rank: int, args: ServerArgs, config: ModelConfig, slots: int) -> SglangRank:
    """Pools, and the attention backend, which arms the patch if there is one. slots -- besides the padding slot 0."""
    gpu = torch.cuda.current_device() if flags.device == "cuda" else rank
    dtype = torch.float16 if flags.device == "cpu" else torch.bfloat16
    pool = MLATokenToKVPool(slots, 1, dtype, LATENT, ROPE, flags.layers, flags.device, False)
    rows = ReqToTokenPool(flags.max_running_requests * 2 + 2, config.context_len, flags.device, False)
    allocator = TokenToKVPoolAllocator(slots, dtype, flags.device, pool, need_sort=False)
    runner = SimpleNamespace(
        req_to_token_pool=rows, token_to_kv_pool=pool, token_to_kv_pool_allocator=allocator, sliding_window_size=None,
        page_size=1, device=flags.device, gpu_id=gpu, is_draft_worker=False, model_config=config, server_args=args,
        use_mla_backend=True, ps=ParallelState.trivial(
            tp_rank=rank, tp_size=flags.ranks, moe_ep_rank=ep_rank(flags, rank), moe_ep_size=flags.ep_size, gpu_id=gpu))
    return SglangRank(flags.device, dtype, TritonAttnBackend(runner), rows, allocator, pool)
