/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <kdtree/status.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Verify attention over an MLA latent cache, page size 1, for speculative decoding with draft
 * trees.
 *
 * Request b has prefix_b = kv_indptr[b+1] - kv_indptr[b] committed tokens and n_b = qo_indptr[b+1]
 * - qo_indptr[b] draft tokens (negative counts as 0, more than draft_tokens as draft_tokens). Each
 * draft token, in each head, attends
 *   - the whole prefix: rows kv_pool[kv_indices[kv_indptr[b] + t]], t in [0, prefix_b); no mask
 * applies;
 *   - the request's own draft tokens j that the mask shows to it.
 * A row's 576 elements are the key; its first 512 are the value. out = softmax(sm_scale * q.k) v,
 * per row.
 *
 * With an e4m3 kv_pool, k_draft is needed and stays of dtype, and as in SGLang's Triton kernel a
 * prefix key's score is sm_scale * k_scale * e4m3(q).k, its value v_scale * v; draft keys see q
 * as it is. e4m3() rounds to nearest even, and to +-448 what lies beyond. Unlike there, the weights
 * are not rounded to e4m3.
 *
 * A row that sees nothing (prefix 0 and all draft tokens masked) is NaN, as in SGLang's Triton
 * kernel. NaN and Inf in one request's q or KV never reach another request. Rows of requests with
 * n_b = 0 are not written. Bad lengths are data, not errors: the host never looks at them, so one
 * captured CUDA graph serves all of them.
 *
 * Concurrency: re-entrant; two calls that may overlap in time need two workspaces.
 */

#define KDTREE_QK_DIM 576
#define KDTREE_V_DIM 512
#define KDTREE_MAX_DRAFT_TOKENS 128
#define KDTREE_MAX_HEADS 128
#define KDTREE_MAX_BATCH 4096

enum kdtree_dtype {
  KDTREE_BF16 = 0,
  KDTREE_FP16 = 1,
  KDTREE_FP32 = 2, /* CPU only */
};

enum kdtree_kv_dtype {
  KDTREE_KV_SAME = 0, /* as dtype; k_scale and v_scale are ignored */
  KDTREE_KV_E4M3 = 1, /* fp8 e4m3 (finite, one NaN), one byte an element */
};

/* What the int32 at `enable` says (gate.h writes it). */
enum kdtree_enable {
  KDTREE_ENABLE_NOTHING = 0, /* write nothing at all */
  KDTREE_ENABLE_OUT = 1,     /* write out */
  KDTREE_ENABLE_SCRATCH = 2, /* write out_scratch; out if that is null */
};

/*
 * Pointers are to device memory for the CUDA function, to host memory for the CPU ones; the caller
 * owns everything. Strides count elements. All indexing is 64-bit. "index" = int32 or int64 as
 * index_bits says for that array.
 */
struct kdtree_verify_attn_params {
  uint32_t struct_bytes; /* sizeof(struct kdtree_verify_attn_params) */
  int16_t dtype;         /* enum kdtree_dtype, of q, k_draft, out and out_scratch */
  int16_t kv_dtype;      /* enum kdtree_kv_dtype, of kv_pool; e4m3 needs a dtype of two bytes */
  int32_t batch;         /* requests, 1..KDTREE_MAX_BATCH */
  int32_t draft_tokens;  /* most draft tokens of a request, 1..KDTREE_MAX_DRAFT_TOKENS */
  int32_t heads;         /* query heads of this rank, 1..KDTREE_MAX_HEADS; one KV head */
  int32_t nsplit; /* parts that the KV of the batch is cut into, >= 1; 0 = chosen from the GPU. CPU:
                     ignored */
  float sm_scale; /* factor on q.k, any scaling of the model included */
  int32_t threads; /* CPU: threads to use, 0 = one a core. CUDA: ignored */

  const void*
      q; /* [tokens, heads, 576]; rows of request b start at qo_indptr[b]; 16-byte aligned */
  int64_t q_token_stride;
  int64_t q_head_stride; /* both times the element size a multiple of 16 bytes */

  const void* k_draft;    /* [tokens, 576] keys of the draft tokens, in q's order; 16-byte aligned.
                             Null: they are read from kv_pool through out_cache_loc */
  int64_t k_draft_stride; /* a multiple of 16 bytes */

  const void* kv_pool;    /* [slots, 576], 16-byte aligned */
  int64_t kv_slot_stride; /* a multiple of 16 bytes */
  int32_t kv_slots; /* slots in the pool, from 1; an index outside [0, slots) is read as slots-1 */
  float k_scale;    /* e4m3: what a stored key is to be multiplied by, above 0 and finite */

  void* out; /* [tokens, heads, 512] */
  int64_t out_token_stride;
  int64_t out_head_stride;
  void* out_scratch; /* as out, same strides; nullable */

  const void* qo_indptr;    /* index [batch+1], inclusive prefix sums of n_b */
  const int32_t* kv_indptr; /* [batch+1], starts of the requests in kv_indices */
  const void* kv_indices;   /* index [>= kv_indptr[batch]]; what lies beyond is never read; null if
                               that is 0 */
  const void*
      out_cache_loc; /* index [tokens], slots of the draft tokens; nullable if k_draft is given */
  int32_t qo_indptr_bits;     /* 32 or 64 */
  int32_t kv_indices_bits;    /* 32 or 64 */
  int32_t out_cache_loc_bits; /* 32 or 64 */
  float v_scale; /* e4m3: what a stored value is to be multiplied by, above 0 and finite */

  const uint8_t* mask;        /* token i of request b sees draft token j of it if
                                 mask[mask_indptr[b] + i*(prefix_b+n_b) + prefix_b + j] != 0; no other byte
                                 is read.        Null: causal, i sees j <= i */
  const int64_t* mask_indptr; /* [batch+1] or longer; nullable if mask is null */

  const int32_t* enable; /* one enum kdtree_enable, read by the kernels when they begin; null =
                            KDTREE_ENABLE_OUT. What writes it is complete before the launch ahead of
                            this one ends: a kernel launched in the usual way, as the gate's is */

  void* workspace; /* 256-byte aligned, contents don't matter; CPU functions: nullable */
  int64_t workspace_bytes;
};

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Bytes of workspace that kdtree_verify_attn_cuda needs on the current GPU for up to `batch`
 * requests; grows with batch. Below 0: an enum kdtree_status, or minus 1000 minus a cudaError_t.
 */
KDTREE_API int64_t kdtree_verify_attn_workspace_bytes(int32_t batch, int32_t draft_tokens,
                                                      int32_t heads, int32_t nsplit);

/* Enqueues on `stream` (a cudaStream_t) of the current device. bf16, fp16, both with either
 * kv_dtype. Capture-safe. */
KDTREE_API int kdtree_verify_attn_cuda(const struct kdtree_verify_attn_params* params,
                                       void* stream);

/* Computes on the calling thread and `threads` - 1 more, fp32 accumulation. bf16, fp16, fp32. */
KDTREE_API int kdtree_verify_attn_cpu(const struct kdtree_verify_attn_params* params);

/*
 * The reference: everything in fp64, one thread, straight from the definition above; params as for
 * the CPU function. Results go to `out64`, contiguous [tokens, heads, 512]; params->out,
 * out_scratch and enable are ignored.
 */
KDTREE_API int kdtree_verify_attn_fp64(const struct kdtree_verify_attn_params* params,
                                       double* out64);

#ifdef __cplusplus
}
static_assert(offsetof(kdtree_verify_attn_params, q) == 32 &&
                  sizeof(kdtree_verify_attn_params) == 216,
              "kdtree_verify_attn_params moved");
#endif
