# SPDX-License-Identifier: Apache-2.0
"""Config-only model folders for `--load-format dummy`: a DeepSeek-V3 shape whose attention is one TP8 rank of Kimi K2.x
(8 heads a rank, MLA 576/512, bf16), and a DFLASH draft model for it."""
import json
from pathlib import Path

VOCABULARY = 8192
MAX_CONTEXT = 131072


def target(layers: int, heads: int, experts: int) -> dict:
    """heads: of the whole model, 8 for each TP rank; many experts are made narrow, so that 61 layers still fit."""
    return dict(
        architectures=["DeepseekV3ForCausalLM"], model_type="deepseek_v3", torch_dtype="bfloat16",
        vocab_size=VOCABULARY, hidden_size=2048, intermediate_size=4096,
        moe_intermediate_size=64 if experts > 64 else 512, num_hidden_layers=layers, first_k_dense_replace=1,
        moe_layer_freq=1, num_attention_heads=heads, num_key_value_heads=heads, attention_bias=False,
        attention_dropout=0.0, q_lora_rank=512, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64,
        v_head_dim=128, n_routed_experts=experts, n_shared_experts=1, num_experts_per_tok=8, ep_size=1, n_group=1,
        topk_group=1, topk_method="noaux_tc", scoring_func="sigmoid", norm_topk_prob=True, routed_scaling_factor=2.5,
        num_nextn_predict_layers=1, hidden_act="silu", rms_norm_eps=1e-6, initializer_range=0.02,
        tie_word_embeddings=False, use_cache=True, max_position_embeddings=MAX_CONTEXT, rope_theta=50000.0,
        rope_scaling=dict(type="yarn", factor=32.0, original_max_position_embeddings=4096, beta_fast=1.0, beta_slow=1.0,
                          mscale=1.0, mscale_all_dim=1.0), bos_token_id=0, eos_token_id=1)


def draft(target_layers: int) -> dict:
    """Needs a target of four layers or more."""
    return dict(
        architectures=["DFlashDraftModel"], model_type="qwen3", torch_dtype="bfloat16", vocab_size=VOCABULARY,
        hidden_size=2048, intermediate_size=2048, num_hidden_layers=2, num_target_layers=target_layers,
        num_attention_heads=8, num_key_value_heads=4, head_dim=128, attention_bias=False, hidden_act="silu",
        rms_norm_eps=1e-6, tie_word_embeddings=False, max_position_embeddings=MAX_CONTEXT, rope_theta=50000.0,
        block_size=9, bos_token_id=0, eos_token_id=1, dflash_config=dict(target_layer_ids=[1, 2], mask_token_id=VOCABULARY - 6))


def write_model(folder: Path, layers: int, heads: int = 8, experts: int = 32) -> Path:
    """folder/target and folder/draft; returns `folder`."""
    for name, config in (("target", target(layers, heads, experts)), ("draft", draft(layers))):
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "config.json").write_text(json.dumps(config, indent=1))
    return folder
