// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <kdtree/compare.h>
#include <kdtree/gate.h>
#include <kdtree/moe.h>
#include <kdtree/slots.h>
#include <kdtree/verify_attn.h>

#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "host_view.h"

namespace kdtree {
namespace {

struct Call {
  std::vector<float> q = std::vector<float>(2 * KDTREE_QK_DIM);
  std::vector<float> pool = std::vector<float>(4 * KDTREE_QK_DIM);
  std::vector<float> out = std::vector<float>(2 * KDTREE_V_DIM);
  std::vector<int32_t> qo{0, 2};
  std::vector<int32_t> kv{0, 1};
  std::vector<int64_t> indices{1};
  std::vector<int64_t> loc{2, 3};
  kdtree_verify_attn_params params{};

  Call() {
    params.struct_bytes = sizeof params;
    params.dtype = KDTREE_FP32;
    params.batch = 1;
    params.draft_tokens = 2;
    params.heads = 1;
    params.sm_scale = 1.0F;
    params.threads = 1;
    params.q = q.data();
    params.q_token_stride = params.q_head_stride = params.kv_slot_stride = KDTREE_QK_DIM;
    params.kv_pool = pool.data();
    params.kv_slots = 4;
    params.out = out.data();
    params.out_token_stride = params.out_head_stride = KDTREE_V_DIM;
    params.qo_indptr = qo.data();
    params.qo_indptr_bits = 32;
    params.kv_indptr = kv.data();
    params.kv_indices = indices.data();
    params.kv_indices_bits = 64;
    params.out_cache_loc = loc.data();
    params.out_cache_loc_bits = 64;
  }
};

void to_e4m3(kdtree_verify_attn_params& p, float k_scale, float v_scale) {
  p.dtype = KDTREE_BF16;
  p.kv_dtype = KDTREE_KV_E4M3;
  p.k_draft = p.q;
  p.k_draft_stride = KDTREE_QK_DIM;
  p.k_scale = k_scale;
  p.v_scale = v_scale;
}

TEST(Abi, GoodCallIsTaken) {
  Call call;
  EXPECT_EQ(kdtree_verify_attn_cpu(&call.params), KDTREE_OK);
}

TEST(Abi, BadCallsAreRefusedAndWriteNothing) {
  using Change = std::function<void(kdtree_verify_attn_params&)>;
  const std::vector<std::pair<int, Change>> bad = {
      {KDTREE_BAD_STRUCT, [](auto& p) { p.struct_bytes = 8; }},
      {KDTREE_BAD_DTYPE, [](auto& p) { p.dtype = 9; }},
      {KDTREE_BAD_DTYPE, [](auto& p) { p.qo_indptr_bits = 16; }},
      {KDTREE_BAD_DTYPE, [](auto& p) { p.out_cache_loc_bits = 0; }},
      {KDTREE_BAD_SHAPE, [](auto& p) { p.batch = 0; }},
      {KDTREE_BAD_SHAPE, [](auto& p) { p.draft_tokens = KDTREE_MAX_DRAFT_TOKENS + 1; }},
      {KDTREE_BAD_SHAPE, [](auto& p) { p.heads = KDTREE_MAX_HEADS + 1; }},
      {KDTREE_BAD_SHAPE, [](auto& p) { p.kv_slots = 0; }},
      {KDTREE_BAD_SHAPE, [](auto& p) { p.nsplit = -1; }},
      {KDTREE_BAD_POINTER, [](auto& p) { p.q = nullptr; }},
      {KDTREE_BAD_POINTER, [](auto& p) { p.out = nullptr; }},
      {KDTREE_BAD_POINTER, [](auto& p) { p.out_cache_loc = nullptr; }},
      {KDTREE_BAD_POINTER, [](auto& p) { p.mask = reinterpret_cast<const uint8_t*>(p.q); }},
      {KDTREE_BAD_POINTER, [](auto& p) { p.kv_pool = static_cast<const char*>(p.kv_pool) + 4; }},
      {KDTREE_BAD_DTYPE, [](auto& p) { p.kv_dtype = 2; }},
      {KDTREE_BAD_DTYPE, [](auto& p) { p.kv_dtype = KDTREE_KV_E4M3; }},  // with fp32
      {KDTREE_BAD_POINTER,                                               // without k_draft
       [](auto& p) { p.dtype = KDTREE_BF16, p.kv_dtype = KDTREE_KV_E4M3; }},
      {KDTREE_BAD_SCALE, [](auto& p) { to_e4m3(p, 0.0F, 1.0F); }},
      {KDTREE_BAD_SCALE, [](auto& p) { to_e4m3(p, 1.0F, std::numeric_limits<float>::infinity()); }},
      {KDTREE_BAD_STRIDE, [](auto& p) { p.kv_slot_stride = 577; }},
      {KDTREE_BAD_STRIDE, [](auto& p) { p.q_token_stride = 1; }},
  };
  for (size_t i = 0; i < bad.size(); ++i) {
    Call call;
    std::fill(call.out.begin(), call.out.end(), 7.0F);
    bad[i].second(call.params);
    EXPECT_EQ(kdtree_verify_attn_cpu(&call.params), bad[i].first) << i;
    for (const float value : call.out) ASSERT_EQ(value, 7.0F) << i;
  }
  EXPECT_EQ(kdtree_verify_attn_cpu(nullptr), KDTREE_BAD_POINTER);
}

TEST(Abi, EveryStatusHasItsOwnText) {
  std::vector<std::string> texts;
  for (int status = KDTREE_BAD_SCALE; status <= KDTREE_OK; ++status) {
    const std::string text = kdtree_status_string(status);
    EXPECT_EQ(std::count(texts.begin(), texts.end(), text), 0) << text;
    texts.push_back(text);
  }
  EXPECT_STREQ(kdtree_status_string(-12345), "unknown status");
}

TEST(Abi, WithoutCudaTheCudaFunctionsSaySo) {
  if (kdtree_has_cuda() != 0) GTEST_SKIP() << "this library has the CUDA kernels";
  Call call;
  EXPECT_EQ(kdtree_verify_attn_cuda(&call.params, nullptr), KDTREE_NO_CUDA);
  EXPECT_EQ(kdtree_verify_attn_workspace_bytes(1, 9, 8, 0), KDTREE_NO_CUDA);
  EXPECT_EQ(kdtree_tick_cuda(nullptr, nullptr), KDTREE_NO_CUDA);
  EXPECT_EQ(kdtree_slots_cuda(nullptr, nullptr), KDTREE_NO_CUDA);
  EXPECT_EQ(kdtree_moe_begin_cuda(nullptr, 0, nullptr), KDTREE_NO_CUDA);
  EXPECT_EQ(kdtree_moe_count_cuda(nullptr, nullptr), KDTREE_NO_CUDA);
  EXPECT_EQ(kdtree_moe_end_cuda(nullptr, nullptr, 0, 0, nullptr), KDTREE_NO_CUDA);
}

TEST(Abi, GateRefusesBadParams) {
  kdtree_gate_params params{};
  EXPECT_EQ(kdtree_gate_cpu(&params), KDTREE_BAD_STRUCT);
  params.struct_bytes = sizeof params;
  params.batch = 1;
  params.qo_indptr_bits = 64;
  EXPECT_EQ(kdtree_gate_cpu(&params), KDTREE_BAD_POINTER);
}

TEST(Abi, ObserversRefuseBadParams) {
  EXPECT_EQ(kdtree_tick_cpu(nullptr), KDTREE_BAD_POINTER);
  kdtree_slots_params slots{};
  EXPECT_EQ(kdtree_slots_cpu(&slots), KDTREE_BAD_STRUCT);
  slots.struct_bytes = sizeof slots;
  EXPECT_EQ(kdtree_slots_cpu(&slots), KDTREE_BAD_SHAPE);
  EXPECT_EQ(kdtree_moe_copy_bytes(2, 16, 4), 64 + 2 * (16 + 3 + 2 * 4) * 8);
  EXPECT_EQ(kdtree_moe_table_bytes(2, 16, 4), 64 + 2 * (16 + 3 + 2 * 4) * 8 + 2 * (16 + 1) * 4);
  for (const auto [layers, experts, ranks] : {std::array{0, 16, 4},
                                              {KDTREE_MOE_MAX_LAYERS + 1, 16, 4},
                                              {2, 0, 0},
                                              {2, KDTREE_MOE_MAX_EXPERTS + 1, 0},
                                              {2, 16, 3},
                                              {2, 16, -1},
                                              {2, 1024, 512}}) {
    EXPECT_EQ(kdtree_moe_table_bytes(layers, experts, ranks), KDTREE_BAD_SHAPE);
    EXPECT_EQ(kdtree_moe_copy_bytes(layers, experts, ranks), KDTREE_BAD_SHAPE);
  }
  kdtree_moe_table table{nullptr, 2, 16, 4, 0};
  EXPECT_EQ(kdtree_moe_begin_cpu(&table, 1), KDTREE_BAD_POINTER);
  kdtree_moe_head head{};
  table.head = &head;
  EXPECT_EQ(kdtree_moe_end_cpu(&table, nullptr, 0, 1), KDTREE_BAD_POINTER);
  EXPECT_EQ(kdtree_moe_end_cpu(&table, &head, 1, 2), KDTREE_BAD_SHAPE);
  kdtree_moe_count_params count{};
  EXPECT_EQ(kdtree_moe_count_cpu(&count), KDTREE_BAD_STRUCT);
  count.struct_bytes = sizeof count;
  count.table = table;
  count.layer = 2;
  EXPECT_EQ(kdtree_moe_count_cpu(&count), KDTREE_BAD_SHAPE);
}

TEST(HalfTypes, EveryBf16SurvivesARoundTrip) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const Bf16 half{static_cast<uint16_t>(bits)};
    if (std::isnan(half.value())) {
      EXPECT_TRUE(std::isnan(Bf16::from(half.value()).value()));
    } else {
      ASSERT_EQ(Bf16::from(half.value()).bits, bits);
    }
  }
}

double fp16_by_definition(uint16_t bits) {
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  const int exponent = (bits >> 10) & 31;
  const double fraction = (bits & 1023) / 1024.0;
  if (exponent == 31)
    return fraction == 0 ? sign * std::numeric_limits<double>::infinity() : std::nan("");
  return exponent == 0 ? sign * std::ldexp(fraction, -14)
                       : sign * std::ldexp(1 + fraction, exponent - 15);
}

TEST(HalfTypes, EveryFp16IsReadAsDefinedAndSurvivesARoundTrip) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const Fp16 half{static_cast<uint16_t>(bits)};
    const double want = fp16_by_definition(half.bits);
    if (std::isnan(want)) {
      ASSERT_TRUE(std::isnan(half.value()));
      ASSERT_TRUE(std::isnan(Fp16::from(half.value()).value()));
    } else {
      ASSERT_EQ(double{half.value()}, want) << bits;
      ASSERT_EQ(Fp16::from(half.value()).bits, bits);
    }
  }
}

TEST(HalfTypes, RoundingIsToNearestEven) {
  EXPECT_EQ(Bf16::from(1.0F + 1.0F / 256).value(), 1.0F);
  EXPECT_EQ(Bf16::from(1.0F + 3.0F / 256).value(), 1.0F + 4.0F / 256);
  EXPECT_EQ(Fp16::from(1.0F + 1.0F / 2048).value(), 1.0F);
  EXPECT_EQ(Fp16::from(1.0F + 3.0F / 2048).value(), 1.0F + 4.0F / 2048);
  EXPECT_EQ(Fp16::from(65519.0F).value(), 65504.0F);
  EXPECT_TRUE(std::isinf(Fp16::from(65520.0F).value()));
  EXPECT_EQ(Fp16::from(std::ldexp(1.0F, -25)).value(), 0.0F);
  EXPECT_EQ(Fp16::from(std::ldexp(1.5F, -25)).value(), std::ldexp(1.0F, -24));
}

}  // namespace
}  // namespace kdtree
