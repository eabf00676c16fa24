/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <kdtree/status.h>
#include <stddef.h>
#include <stdint.h>

/*
 * What a MoE router chose, counted on the device: per layer and expert; experts with a token, the
 * fullest rank and ranks without a token, each step by step.
 *
 *   kdtree_moe_begin   a pass begins whose first `rows` tokens count (padding comes after them)
 *   kdtree_moe_count   one layer's choice in that pass; does nothing outside of a counted pass
 *   kdtree_moe_end     the pass is over; it is counted, and copied to where the host reads it
 *
 * The three run on one stream, so that a captured graph holds kdtree_moe_count alone and whoever
 * replays it says, before and after, how many of its tokens are real. A pass that nobody began
 * (prefill, a draft model, a warm-up) is not counted. A layer that chooses twice in a pass is one
 * choice: the sum.
 *
 * A table is a struct kdtree_moe_head and behind it, without gaps, of uint64:
 *   tokens [layers][experts]  assignments
 *   unique [layers]           experts with a token, summed over passes
 *   steps  [layers]           passes counted
 *   peak   [layers]           assignments of the rank that had most of them, summed over passes
 *   idle   [layers][ranks]    passes in which no expert of that rank got a token
 *   straggler [layers][ranks] KDTREE_MOE_SHARE for each pass in which that rank had most, divided
 *                             among those that had as many; exact for up to 16 of them
 * and of uint32, for the pass that runs: chosen [layers][experts], ran [layers],
 * filled up to eight bytes.
 * Rank r of `ranks` holds experts [r, r+1) * experts / ranks; ranks 0 = not known where they are,
 * and peak stays 0. Start a table as all zero bytes; the uint64 only grow.
 *
 * The copy is a table without the uint32. It is a sequence lock for a reader on the host, as in
 * compare.h. kdtree_moe_end writes to it what has changed: give the same one, zero at first, to
 * each call.
 *
 * Concurrency: one call at a time per table (they run on one stream).
 */
#define KDTREE_MOE_MAX_LAYERS 256
#define KDTREE_MOE_MAX_EXPERTS 1024
#define KDTREE_MOE_MAX_RANKS 256
#define KDTREE_MOE_SHARE 720720

struct kdtree_moe_head {
  uint64_t sequence;
  uint64_t steps;  /* passes begun with rows > 0 */
  uint64_t tokens; /* their rows, summed */
  int32_t rows;    /* of the pass that runs; 0 = none is counted */
  uint32_t ended;  /* layers that the kdtree_moe_end that runs has done */
  uint64_t reserved1[4];
};

struct kdtree_moe_table {
  struct kdtree_moe_head* head; /* 8-byte aligned */
  int32_t layers;               /* 1..KDTREE_MOE_MAX_LAYERS */
  int32_t experts;              /* 1..KDTREE_MOE_MAX_EXPERTS */
  int32_t ranks; /* 0..KDTREE_MOE_MAX_RANKS, a divisor of experts; 0 = no idle table */
  int32_t reserved;
};

struct kdtree_moe_count_params {
  uint32_t struct_bytes; /* sizeof(struct kdtree_moe_count_params) */
  int32_t layer;         /* row of the table, 0..layers-1 */
  struct kdtree_moe_table table;
  const void* ids;    /* index [tokens, columns]; an id outside [0, experts) is left out */
  int64_t ids_stride; /* elements between rows */
  int32_t ids_bits;   /* 32 or 64 */
  int32_t tokens;     /* >= 0 */
  int32_t columns;    /* >= 0; tokens * columns fits an int32 */
  int32_t reserved;
};

#ifdef __cplusplus
extern "C" {
#endif
/* Bytes of a table and of a copy; below 0: an enum kdtree_status. */
KDTREE_API int64_t kdtree_moe_table_bytes(int32_t layers, int32_t experts, int32_t ranks);
KDTREE_API int64_t kdtree_moe_copy_bytes(int32_t layers, int32_t experts, int32_t ranks);

/* They enqueue on `stream` (a cudaStream_t) of the current device. Capture-safe. */
KDTREE_API int kdtree_moe_begin_cuda(const struct kdtree_moe_table* table, int32_t rows,
                                     void* stream);
KDTREE_API int kdtree_moe_count_cuda(const struct kdtree_moe_count_params* params, void* stream);
/* copy: of the same shape; the device can write and the host can read it. [first, last]: the layers
 * that are counted; what another chose waits for the call that names it. */
KDTREE_API int kdtree_moe_end_cuda(const struct kdtree_moe_table* table,
                                   struct kdtree_moe_head* copy, int32_t first, int32_t last,
                                   void* stream);
/* The same on host memory. */
KDTREE_API int kdtree_moe_begin_cpu(const struct kdtree_moe_table* table, int32_t rows);
KDTREE_API int kdtree_moe_count_cpu(const struct kdtree_moe_count_params* params);
KDTREE_API int kdtree_moe_end_cpu(const struct kdtree_moe_table* table,
                                  struct kdtree_moe_head* copy, int32_t first, int32_t last);
#ifdef __cplusplus
}
static_assert(offsetof(kdtree_moe_head, rows) == 24 && sizeof(kdtree_moe_head) == 64,
              "kdtree_moe_head moved");
#endif
