// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kdtree/compare.h>
#include <kdtree/gate.h>
#include <kdtree/moe.h>
#include <kdtree/slots.h>
#include <kdtree/verify_attn.h>

// What the CUDA and the CPU functions check alike before they touch anything.
namespace kdtree {

enum class Device { cpu, cuda };

// KDTREE_OK or why the params can't be used. The workspace is not looked at.
int check(const kdtree_verify_attn_params& params, Device device);
int check(const kdtree_gate_params& params);
int check(const kdtree_gate_word* word);
int check(const kdtree_compare_params& params, Device device);
int check(const kdtree_slots_params& params);
int check(const kdtree_moe_table& table);
int check(const kdtree_moe_count_params& params);
int check(const kdtree_moe_table& table, const kdtree_moe_head* copy, int32_t first, int32_t last);

int64_t element_bytes(int32_t dtype);

}  // namespace kdtree
