/* SPDX-License-Identifier: Apache-2.0 */
/* Prints where the C headers place what Python packs: "name offset bytes" a line. */
#include <stdio.h>

#include "agent/stats/control_abi.h"
#include "agent/stats/stats_abi.h"

#define H(field)                                                                     \
  printf("header.%s %zu %zu\n", #field, offsetof(struct kdtree_stats_header, field), \
         sizeof(((struct kdtree_stats_header*)0)->field))
#define F(type, field)                                                         \
  printf(#type ".%s %zu %zu\n", #field, offsetof(struct kdtree_##type, field), \
         sizeof(((struct kdtree_##type*)0)->field))

int main(void) {
  H(magic);
  H(version);
  H(header_bytes);
  H(file_bytes);
  H(sequence);
  H(crc32);
  H(reserved0);
  H(pid);
  H(pid_start_ticks);
  H(boot_id);
  H(updated_boottime_ns);
  H(publications);
  H(tp_rank);
  H(tp_size);
  H(moe_ep_rank);
  H(moe_ep_size);
  H(device_uuid);
  H(device_name);
  H(release_id);
  H(engine_version);
  H(engine_fingerprint);
  H(torch_version);
  H(library_sha256);
  H(environment_sha256);
  H(patch_state);
  H(mode);
  H(control_generation);
  H(reason);
  H(sort_state);
  H(graphs);
  H(start_mode);
  H(reserved2);
  H(calls_kernel);
  H(calls_engine);
  H(handed_back);
  H(compares);
  H(mismatches);
  H(max_abs);
  H(max_ulp);
  H(sum_mean_ulp);
  H(max_mean_ulp);
  H(longest_prefix);
  H(worst_layer);
  H(worst_request);
  H(worst_batch);
  H(worst_head);
  H(worst_prefix);
  H(kv_pairs);
  H(kv_contiguous_pairs);
  H(moe_layers);
  H(moe_experts);
  H(moe_top_k);
  H(moe_first_layer);
  H(moe_steps);
  H(moe_tokens);
  H(batch_count);
  H(section_count);
  H(batches);
  H(sections);
  H(reserved1);
  F(stats_section, kind);
  F(stats_section, elem_bytes);
  F(stats_section, offset);
  F(stats_section, rows);
  F(stats_section, cols);
  F(stats_section, reserved);
  F(stats_batch, batch);
  F(stats_batch, reserved);
  F(stats_batch, compares);
  F(stats_batch, calls);
  F(control, magic);
  F(control, version);
  F(control, mode);
  F(control, generation);
  F(control, release_id);
  F(control, crc32);
  F(control, reserved);
  printf("constant.magic %s 0\n", KDTREE_STATS_MAGIC);
  printf("constant.control_magic %s 0\n", KDTREE_CONTROL_MAGIC);
  printf("constant.version %u %u\n", KDTREE_STATS_VERSION, KDTREE_CONTROL_VERSION);
  printf("constant.header_bytes %u 0\n", KDTREE_STATS_HEADER_BYTES);
  printf("constant.max_bytes %u 0\n", KDTREE_STATS_MAX_BYTES);
  printf("constant.max_sections %u %u\n", KDTREE_STATS_MAX_SECTIONS, KDTREE_STATS_MAX_BATCHES);
  printf("constant.max_reasons %u 0\n", KDTREE_STATS_MAX_REASONS);
  printf("constant.state %d %d\n", KDTREE_PATCH_ACTIVE, KDTREE_PATCH_REFUSED);
  printf("constant.mode %d %d\n", KDTREE_MODE_VALIDATE, KDTREE_MODE_ON);
  printf("constant.sections %d %d\n", KDTREE_SECTION_EXPERT_TOKENS, KDTREE_SECTION_PASS_ROWS);
  printf("constant.share %u 0\n", KDTREE_STATS_SHARE);
  return 0;
}
