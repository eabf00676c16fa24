/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <kdtree/status.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Compares our output with the engine's after both kernels ran, and adds the result to an
 * accumulator.
 *
 * One call is one compare: a layer's output for the whole batch. Over the elements where the
 * engine's value is finite:
 *   d     |ours - engine|; where ours is not finite, d is infinite
 *   ulp   d in units in the last place of dtype at the magnitude of the row (its largest finite
 *         |engine| of the 512 elements; at least the smallest normal number)
 *   mean  of ulp over a request's elements; of a compare, the largest of its requests' means
 * The compare is a mismatch if its largest ulp is over max_ulp or its mean is over mean_ulp (or
 * either is not finite). Elements where the engine's own value is NaN or Inf (padded requests may
 * hold them) prove nothing and are skipped.
 *
 * mean_ulp 0.5: two right kernels differ because each rounds P at a maximum of its own. A rounding
 * of P is off by half an ULP at most and by a quarter in the mean; where one key holds the row and
 * its values are as large as an exponent allows, nothing averages it out and 0.36 ULP of the output
 * are left; each further key and each smaller value leaves less (0.04 to 0.13 with random ones).
 * Rounding the output too moves single elements, not the mean. Both limits fail where a row's
 * values cancel in all 512 dims: its magnitude then says nothing of what was summed.
 *
 * The accumulator may lie in device memory or in host memory that the GPU can write (pinned). Start
 * it as all zero bytes. It is a sequence lock for a reader on the host: sequence is odd while it
 * changes; read until it was the same even number before and after.
 *
 * CUDA: `enable` is read as soon as the kernel starts, which may be while the call before it on the
 * stream still runs; so whoever writes it must not use programmatic dependent launch to let others
 * start before it is written (kdtree_gate doesn't). The workspace starts as all zero bytes, and
 * nobody else writes it between calls; calls of any size may share one.
 *
 * Concurrency: one compare at a time per accumulator and per workspace (they run on one stream).
 */
#define KDTREE_COMPARE_MAX_BATCH 512

struct kdtree_compare_accum {
  uint64_t sequence;
  uint64_t compares;
  uint64_t mismatches;
  uint64_t skipped;       /* elements skipped */
  double max_abs;         /* largest d; may be Inf */
  double max_ulp;         /* largest ulp; may be Inf */
  double sum_mean_ulp;    /* sum over compares of the mean, where that is finite */
  int64_t longest_prefix; /* tokens */
  int32_t worst_layer;    /* where max_ulp was seen; these five say nothing while max_ulp is 0 */
  int32_t worst_request;
  int32_t worst_batch;  /* requests in that call */
  int32_t worst_head;   /* of this rank */
  int64_t worst_prefix; /* tokens of that request */
  double max_mean_ulp;  /* largest mean; may be Inf */
  uint64_t reserved[4];
  uint64_t compares_by_batch[KDTREE_COMPARE_MAX_BATCH +
                             1]; /* by requests in the call; larger ones count at [0] */
};

struct kdtree_compare_params {
  uint32_t struct_bytes; /* sizeof(struct kdtree_compare_params) */
  int32_t dtype;         /* enum kdtree_dtype (verify_attn.h); fp32: CPU only */
  int32_t tokens;        /* rows of ours and engines, a multiple of batch */
  int32_t heads;
  int32_t batch; /* requests; request of a token = token / (tokens / batch) */
  int32_t layer; /* reported as worst_layer */
  double max_ulp;
  double mean_ulp;
  const void* ours; /* [tokens, heads, 512], heads contiguous */
  const void* engines;
  int64_t ours_token_stride; /* elements */
  int64_t engines_token_stride;
  const int32_t* kv_indptr; /* [batch+1], for longest_prefix */
  const int32_t* enable;    /* one int32 read by the kernel, 0 = do nothing; null = 1; see below */
  struct kdtree_compare_accum* accum;
  void* workspace; /* CUDA: kdtree_compare_workspace_bytes(), 16-byte aligned; CPU: nullable */
  int64_t workspace_bytes;
};

#ifdef __cplusplus
extern "C" {
#endif
KDTREE_API int64_t kdtree_compare_workspace_bytes(int32_t tokens);
/* Enqueues on `stream` (a cudaStream_t) of the current device. Capture-safe. */
KDTREE_API int kdtree_compare_cuda(const struct kdtree_compare_params* params, void* stream);
KDTREE_API int kdtree_compare_cpu(const struct kdtree_compare_params* params);
#ifdef __cplusplus
}
static_assert(offsetof(kdtree_compare_accum, worst_layer) == 64 &&
                  offsetof(kdtree_compare_accum, worst_prefix) == 80 &&
                  offsetof(kdtree_compare_accum, max_mean_ulp) == 88 &&
                  offsetof(kdtree_compare_accum, compares_by_batch) == 128 &&
                  sizeof(kdtree_compare_accum) == 4232,
              "kdtree_compare_accum moved");
#endif
