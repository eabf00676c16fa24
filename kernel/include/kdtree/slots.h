/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <kdtree/status.h>
#include <stddef.h>
#include <stdint.h>

/*
 * How contiguous the KV slots of a batch are: of the neighbours t, t+1 in a request's prefix, how
 * many have slots that follow each other. Of each request the first max(2, max_slots / batch) slots
 * are looked at.
 *
 * The counts may lie in device memory or in host memory that the GPU can write (pinned). Start them
 * as all zero bytes; they only grow. They are a sequence lock for a reader on the host, as in
 * compare.h.
 *
 * Concurrency: one call at a time per kdtree_slot_counts (they run on one stream).
 */
#define KDTREE_SLOTS_DEFAULT 65536

struct kdtree_slot_counts {
  uint64_t sequence;
  uint64_t pairs;      /* neighbours looked at */
  uint64_t contiguous; /* of them: slots that follow each other */
  uint64_t looks;      /* calls that looked */
  uint64_t reserved[4];
};

struct kdtree_slots_params {
  uint32_t struct_bytes;    /* sizeof(struct kdtree_slots_params) */
  int32_t batch;            /* requests, >= 1 */
  int32_t max_slots;        /* >= 1 */
  int32_t kv_indices_bits;  /* 32 or 64 */
  const int32_t* kv_indptr; /* [batch+1] */
  const void* kv_indices;   /* index [>= kv_indptr[batch]]; what lies beyond is never read */
  const int32_t* enable; /* one int32 read by the kernel when it runs, 0 = do nothing; null = 1 */
  struct kdtree_slot_counts* counts; /* 8-byte aligned */
};

#ifdef __cplusplus
extern "C" {
#endif
/* Enqueues on `stream` (a cudaStream_t) of the current device; one block. Capture-safe. */
KDTREE_API int kdtree_slots_cuda(const struct kdtree_slots_params* params, void* stream);
/* The same on host memory. */
KDTREE_API int kdtree_slots_cpu(const struct kdtree_slots_params* params);
#ifdef __cplusplus
}
static_assert(sizeof(kdtree_slot_counts) == 64, "kdtree_slot_counts moved");
#endif
