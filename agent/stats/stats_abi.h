/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/*
 * The stats file: what one engine process tells the agent and kdtreectl about the patch inside it.
 *
 * One file a process, <stats dir>/<pid>.stats, mode 0644, one writer (the patch;
 * sitecustomize/kdtree_patch/stats.py mirrors these offsets and a test compares them). Little
 * endian. Text is UTF-8, NUL-padded, NUL-terminated unless the field is full, "" = unknown.
 * Counters only grow while the process lives. A numeric field that can be unknown says so.
 *
 * Writer: sequence += 1 (odd), write everything from offset 40 on, crc32, sequence += 1 (even). The
 * file's size never changes after its first even sequence; a writer that needs another size starts
 * a new file and renames it over.
 *
 * Reader loop: read the whole file (bounded by KDTREE_STATS_MAX_BYTES) in one go; magic, version,
 * file_bytes == what was read, header_bytes and every section inside it; sequence even and not 0;
 * crc32 matches. On an odd sequence or a wrong crc32 read again, at most 5 times with 1 ms between:
 * then the file is torn (sequence moved) or damaged (it did not). The writer is alive if
 * /proc/<pid>/stat's start time equals pid_start_ticks (boot_id explains a dead file, it kills
 * none: services of a container may see another id than its shell); values of a dead or stale
 * (updated_boottime_ns older than 10 s) writer are never shown.
 */

#define KDTREE_STATS_MAGIC "KDTSTAT1"
#define KDTREE_STATS_VERSION 3u
#define KDTREE_STATS_HEADER_BYTES 4096u
#define KDTREE_STATS_MAX_BYTES (16u * 1024u * 1024u)
#define KDTREE_STATS_MAX_SECTIONS 16u
#define KDTREE_STATS_MAX_BATCHES 48u
#define KDTREE_STATS_MAX_REASONS 32u

/* On-disk values below are frozen for version 3. */
enum kdtree_patch_state {
  KDTREE_PATCH_PASSIVE =
      0, /* present, nothing patched (yet): not a rank, or the engine was not imported */
  KDTREE_PATCH_ACTIVE = 1, /* patched and armed; `mode` is in force */
  KDTREE_PATCH_REFUSED =
      2, /* stood aside: `reason` says why; the engine runs as if kdtree were not there */
};

enum kdtree_mode {
  KDTREE_MODE_OFF = 0,      /* the engine's own kernel answers */
  KDTREE_MODE_VALIDATE = 1, /* both run, the engine's own answers, the difference is kept */
  KDTREE_MODE_ON = 2,       /* kdtree's kernel answers */
};

/* Why a verify call went to the engine's own kernel although the patch is armed. Index into
 * handed_back[]. */
enum kdtree_hand_back {
  KDTREE_BACK_NOT_VERIFY = 0,  /* forward mode is not target verify; not counted, kept at 0 */
  KDTREE_BACK_NO_METADATA = 1, /* no forward metadata */
  KDTREE_BACK_NOT_MLA = 2,     /* head dims are not 576/512, or more than one KV head */
  KDTREE_BACK_ATTENTION_TYPE =
      3, /* cross, encoder-only, bidirectional (a draft model's own verify) */
  KDTREE_BACK_SINKS = 4,
  KDTREE_BACK_SCORE_MOD = 5, /* score_mod or aux_tensors */
  KDTREE_BACK_LOGIT_CAP = 6,
  KDTREE_BACK_SLIDING_WINDOW = 7,
  KDTREE_BACK_TEMPERATURE = 8, /* xai_temperature_len */
  KDTREE_BACK_DETERMINISTIC = 9,
  KDTREE_BACK_CONTEXT_PARALLEL = 10, /* dcp_size > 1 */
  KDTREE_BACK_SHARED_KV = 11,        /* k or v is None */
  KDTREE_BACK_KV_LAYOUT = 12,        /* k_buffer not [slots, 1, 576] or v_buffer not its view */
  KDTREE_BACK_KV_DTYPE = 13,         /* fp8 KV or a k/v scale */
  KDTREE_BACK_DTYPE = 14,            /* q is not bf16, fp16 (or fp32 on the CPU) */
  KDTREE_BACK_SHAPE = 15,     /* q rows are not batch * draft tokens, or too many draft tokens */
  KDTREE_BACK_MASK = 16,      /* custom_mask shorter than mask_indptr says, or of another type */
  KDTREE_BACK_WORKSPACE = 17, /* no workspace reserved for this batch and n, inside a capture */
  KDTREE_BACK_ERROR = 18,     /* the kernel refused or raised, in this call or when its graph was
                                 captured; what it said is in `reason` and the log */
  KDTREE_BACK_SIGNATURE = 19, /* the call did not bind to a signature that the patch knows */
};

enum kdtree_section_kind {
  KDTREE_SECTION_EXPERT_TOKENS = 1,  /* u64 [moe_layers][moe_experts]  assignments */
  KDTREE_SECTION_UNIQUE_EXPERTS = 2, /* u64 [moe_layers][1]  experts with a token, summed */
  KDTREE_SECTION_LAYER_STEPS = 3,    /* u64 [moe_layers][1]  steps counted in this layer */
  /* n below: moe_ep_size; at moe_ep_size 1, where no rank has experts of its own, tp_size, as if
     expert e were on rank e / (moe_experts / tp_size) */
  KDTREE_SECTION_IDLE_RANKS = 4, /* u64 [moe_layers][n]  steps without a token */
  KDTREE_SECTION_PEAKS = 5,      /* u64 [moe_layers][1]  assignments of the rank that had most of
                                    them in a step, summed over steps */
  KDTREE_SECTION_STRAGGLERS = 6, /* u64 [moe_layers][n]  KDTREE_STATS_SHARE for each step in which
                                    that rank had most, divided among those that had as many */
  KDTREE_SECTION_PASS_ROWS = 7,  /* u64 [any][2]  tokens of a step, steps that had so many; above
                                    256 tokens to the nearest sixteenth of a power of two; rows of
                                    zeros fill up, so that the file seldom changes its size */
};
#define KDTREE_STATS_SHARE 720720u /* divides evenly among up to 16 */

struct kdtree_stats_section {
  uint32_t kind;       /* enum kdtree_section_kind; unknown kinds are skipped */
  uint32_t elem_bytes; /* 8 */
  uint64_t offset;     /* from the start of the file, multiple of 8 */
  uint32_t rows;
  uint32_t cols;
  uint64_t reserved;
};

struct kdtree_stats_batch {
  uint32_t
      batch; /* requests in the call, padding included; 0 = all that have no row of their own */
  uint32_t reserved;
  uint64_t compares;
  uint64_t calls; /* served at that size by either kernel: of calls_kernel and calls_engine */
};

struct kdtree_stats_header {
  char magic[8];
  uint32_t version;
  uint32_t header_bytes;
  uint64_t file_bytes;
  uint64_t sequence; /* odd while the writer writes; 0 = never written */
  uint32_t crc32;    /* zlib's, over [40, file_bytes) */
  uint32_t reserved0;

  /* who */
  uint64_t pid;
  uint64_t pid_start_ticks;     /* /proc/<pid>/stat field 22, clock ticks since boot */
  char boot_id[40];             /* /proc/sys/kernel/random/boot_id */
  uint64_t updated_boottime_ns; /* CLOCK_BOOTTIME of this publication */
  uint64_t publications;
  int32_t tp_rank; /* -1 = not a rank (launcher, detokenizer) or not known yet */
  int32_t tp_size; /* -1 = unknown */
  int32_t moe_ep_rank;
  int32_t moe_ep_size;
  char device_uuid[64]; /* "GPU-..." as NVML prints it; "" on the CPU */
  char device_name[64]; /* "NVIDIA H200"; "cpu" */

  /* what runs */
  char release_id[64];
  char engine_version[64];
  char engine_fingerprint[64]; /* sha256, hex, of the sources that the patch touches */
  char torch_version[32];
  char library_sha256[64];     /* of the loaded kernel library, hex */
  char environment_sha256[64]; /* of "NAME=value\n" for KDTREE_* and PYTHONPATH, sorted by name, hex
                                */

  /* state */
  uint32_t patch_state;        /* enum kdtree_patch_state */
  uint32_t mode;               /* enum kdtree_mode, as in force */
  uint64_t control_generation; /* of the last control file obeyed; 0 = none seen, the environment's
                                  mode holds */
  char reason[256];            /* why refused or passive; last kernel error */
  int32_t
      sort_state; /* free-list sort: -1 unknown, 0 off, 1 confirmed, 2 asked for and not possible */
  int32_t graphs; /* -1 unknown, 0 eager, 1 verify runs in captured CUDA graphs */
  int32_t start_mode; /* enum kdtree_mode that KDTREE_VERIFY asks for; -1 unknown */
  int32_t reserved2;

  /* verify calls (one a layer and step); a replayed graph counts as the calls that it holds, a
   * warm-up and a capture as none */
  uint64_t calls_kernel; /* answered by kdtree's kernel */
  uint64_t calls_engine; /* eligible, answered by the engine's own kernel: mode off or validate */
  uint64_t handed_back[KDTREE_STATS_MAX_REASONS];
  uint64_t compares;
  uint64_t mismatches; /* compares over tolerance */
  double max_abs;      /* largest |difference| seen, output units; NaN = none compared */
  double max_ulp; /* largest |difference| in ULP of the output dtype at the output's magnitude; NaN
                     = none */
  double sum_mean_ulp; /* sum over compares of that compare's mean: of |difference| in the same ULP
                          over a request's elements, the largest of its requests' */
  double max_mean_ulp; /* largest such mean seen; NaN = none */
  uint64_t longest_prefix;      /* longest prefix compared, tokens */
  int32_t worst_layer;          /* where max_ulp was seen; -1 = none */
  int32_t worst_request;        /* its row in the batch; -1 = none */
  int32_t worst_batch;          /* requests in that call; -1 = none */
  int32_t worst_head;           /* of this rank; -1 = none */
  uint64_t worst_prefix;        /* tokens of that request */
  uint64_t kv_pairs;            /* neighbouring KV slots looked at ... */
  uint64_t kv_contiguous_pairs; /* ... and how many of them followed each other */

  /* MoE routing in decode and verify passes of the target model (steps), padded rows left out;
   * all 0 = not observed */
  uint32_t moe_layers;
  uint32_t moe_experts; /* logical, shared experts not counted */
  uint32_t moe_top_k;
  uint32_t moe_first_layer; /* layer id of row 0 of the sections */
  uint64_t moe_steps;
  uint64_t moe_tokens; /* routed tokens, summed over steps (each counted once, not per layer) */

  uint32_t
      batch_count; /* rows of `batches`, sorted by batch, without those of 0 calls and compares */
  uint32_t section_count;
  struct kdtree_stats_batch batches[KDTREE_STATS_MAX_BATCHES];
  struct kdtree_stats_section sections[KDTREE_STATS_MAX_SECTIONS];
  uint8_t reserved1[KDTREE_STATS_HEADER_BYTES - 2968];
};

#ifdef __cplusplus
#define KDTREE_STATS_ASSERT static_assert
#else
#define KDTREE_STATS_ASSERT _Static_assert
#endif
#define KDTREE_STATS_AT(field, at) \
  KDTREE_STATS_ASSERT(offsetof(struct kdtree_stats_header, field) == (at), #field " moved")

KDTREE_STATS_AT(sequence, 24);
KDTREE_STATS_AT(crc32, 32);
KDTREE_STATS_AT(pid, 40);
KDTREE_STATS_AT(boot_id, 56);
KDTREE_STATS_AT(updated_boottime_ns, 96);
KDTREE_STATS_AT(tp_rank, 112);
KDTREE_STATS_AT(device_uuid, 128);
KDTREE_STATS_AT(release_id, 256);
KDTREE_STATS_AT(engine_version, 320);
KDTREE_STATS_AT(engine_fingerprint, 384);
KDTREE_STATS_AT(torch_version, 448);
KDTREE_STATS_AT(library_sha256, 480);
KDTREE_STATS_AT(environment_sha256, 544);
KDTREE_STATS_AT(patch_state, 608);
KDTREE_STATS_AT(control_generation, 616);
KDTREE_STATS_AT(reason, 624);
KDTREE_STATS_AT(sort_state, 880);
KDTREE_STATS_AT(start_mode, 888);
KDTREE_STATS_AT(calls_kernel, 896);
KDTREE_STATS_AT(handed_back, 912);
KDTREE_STATS_AT(compares, 1168);
KDTREE_STATS_AT(max_abs, 1184);
KDTREE_STATS_AT(longest_prefix, 1216);
KDTREE_STATS_AT(worst_layer, 1224);
KDTREE_STATS_AT(worst_prefix, 1240);
KDTREE_STATS_AT(kv_pairs, 1248);
KDTREE_STATS_AT(moe_layers, 1264);
KDTREE_STATS_AT(moe_steps, 1280);
KDTREE_STATS_AT(batch_count, 1296);
KDTREE_STATS_AT(batches, 1304);
KDTREE_STATS_AT(sections, 2456);
KDTREE_STATS_AT(reserved1, 2968);
KDTREE_STATS_ASSERT(sizeof(struct kdtree_stats_header) == KDTREE_STATS_HEADER_BYTES, "header size");
