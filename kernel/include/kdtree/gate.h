/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <kdtree/status.h>
#include <stddef.h>
#include <stdint.h>

/*
 * The gate: run once a step, before the layers, it turns the mode word into what the kernels of
 * that step obey. In a captured graph that holds both kernels, the word alone decides which of them
 * works; no host code runs in between.
 *
 *   mode              [0] our kernel            [1] compare  [2] engine's kernel and gated_*
 *   0 off, or unknown 0 KDTREE_ENABLE_NOTHING   0            1, copies of the originals
 *   1 validate        2 KDTREE_ENABLE_SCRATCH   1            1, copies of the originals
 *   2 on              1 KDTREE_ENABLE_OUT       0            0, all zero: SGLang's kernel then
 *                                                            writes nothing
 *
 * flags[3] is the mode obeyed; flags[4] is 1 in the first step that sees a new `look`, else 0
 * (kdtree_slots obeys it); the others are 0. The word lives in host memory that the GPU can read
 * (pinned); the host changes `mode` and `look` with plain aligned 4-byte stores at any time, the
 * gate adds one to steps[mode] each time it runs.
 *
 * The tick is for what a graph does without a gate: it adds one to `ticks` each time it runs, and
 * nothing else.
 *
 * Concurrency: one gate or tick at a time per word (they run on one stream).
 */
#define KDTREE_GATE_FLAGS 8

struct kdtree_gate_word {
  uint32_t mode;     /* 0 off, 1 validate, 2 on; written by the host only */
  uint32_t look;     /* written by the host only: another number asks for one look */
  uint64_t steps[3]; /* gates run in each mode; written by the gate only */
  uint32_t looked;   /* `look` as last seen; written by the gate only */
  uint32_t reserved0;
  uint64_t ticks; /* written by the tick only */
  uint64_t reserved1[2];
};

struct kdtree_gate_params {
  uint32_t struct_bytes;         /* sizeof(struct kdtree_gate_params) */
  int32_t batch;                 /* >= 1 */
  struct kdtree_gate_word* word; /* 8-byte aligned; readable and writable by the device */
  const void* qo_indptr;         /* [batch+1], int32 or int64 */
  const int32_t* kv_indptr;      /* [batch+1] */
  void* gated_qo_indptr;         /* [batch+1], type of qo_indptr; must not overlap it */
  int32_t* gated_kv_indptr;      /* [batch+1] */
  int32_t* flags;                /* [KDTREE_GATE_FLAGS] */
  int32_t qo_indptr_bits;        /* 32 or 64 */
  int32_t reserved;
};

#ifdef __cplusplus
extern "C" {
#endif
/* Enqueues on `stream` (a cudaStream_t) of the current device; one small block. Capture-safe. */
KDTREE_API int kdtree_gate_cuda(const struct kdtree_gate_params* params, void* stream);
KDTREE_API int kdtree_tick_cuda(struct kdtree_gate_word* word, void* stream);
/* The same on host memory. */
KDTREE_API int kdtree_gate_cpu(const struct kdtree_gate_params* params);
KDTREE_API int kdtree_tick_cpu(struct kdtree_gate_word* word);
#ifdef __cplusplus
}
static_assert(offsetof(kdtree_gate_word, steps) == 8 && offsetof(kdtree_gate_word, ticks) == 40 &&
                  sizeof(kdtree_gate_word) == 64,
              "kdtree_gate_word moved");
#endif
