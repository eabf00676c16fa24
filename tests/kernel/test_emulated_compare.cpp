// SPDX-License-Identifier: Apache-2.0
// compare's CUDA kernel's own source, emulated, against its CPU implementation: blocks in random
// order, one workspace for calls of every size.
#include "emulator/simt.h"
//
#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "compare_kernel.cuh"
#include "host_view.h"

namespace kdtree {
namespace {

struct Call {
  int32_t tokens, heads, batch, layer;
};

// Rows of ours and of the engine's, of which a few elements differ by 1 ULP, and one by more.
template <typename Host>
class Rows {
 public:
  Rows(const Call& call, uint64_t seed) : call_(call), kv_{0} {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    const auto count = static_cast<std::size_t>(call.tokens * call.heads * KDTREE_V_DIM);
    for (std::size_t i = 0; i < count; ++i) {
      engines_.push_back(Host::from(normal(random)));
      ours_.push_back(engines_.back());
      if (random() % 701 == 0) ours_.back().bits += 1;
    }
    ours_[random() % count].bits += static_cast<uint16_t>(20 + random() % 20);
    for (int32_t b = 0; b < call.batch; ++b)
      kv_.push_back(kv_.back() + static_cast<int32_t>(random() % 5000));
  }
  Host& ours(std::size_t at) { return ours_[at]; }
  Host& engines(std::size_t at) { return engines_[at]; }

  kdtree_compare_params params(kdtree_compare_accum* accum) const {
    kdtree_compare_params p{};
    p.struct_bytes = sizeof p;
    p.dtype = std::is_same_v<Host, Bf16> ? KDTREE_BF16 : KDTREE_FP16;
    p.tokens = call_.tokens;
    p.heads = call_.heads;
    p.batch = call_.batch;
    p.layer = call_.layer;
    p.max_ulp = 4;
    p.mean_ulp = 0.5;
    p.ours = ours_.data();
    p.engines = engines_.data();
    p.ours_token_stride = p.engines_token_stride = int64_t{call_.heads} * KDTREE_V_DIM;
    p.kv_indptr = kv_.data();
    p.accum = accum;
    return p;
  }

 private:
  Call call_;
  std::vector<Host> ours_, engines_;
  std::vector<int32_t> kv_;
};

// Two accumulators that are given the same calls, by the emulated kernel and on the CPU.
template <typename Cuda, typename Host>
class Both {
 public:
  void add(const Rows<Host>& rows, const int32_t* enable, uint64_t seed) {
    auto* head = reinterpret_cast<CompareHead*>(workspace_.data());
    kdtree_compare_params p = rows.params(&emulated_);
    p.enable = enable;
    const CompareWork work{head, reinterpret_cast<TokenDelta*>(head + 1)};
    simt::run({.grid = static_cast<unsigned>(p.tokens), .threads = kCompareThreads, .seed = seed},
              [&] { compare_kernel<Cuda>(p, work); });
    EXPECT_EQ(head->ticket, 0U);
    p.accum = &cpu_;
    EXPECT_EQ(kdtree_compare_cpu(&p), KDTREE_OK);
    expect_equal();
  }
  const kdtree_compare_accum& emulated() const { return emulated_; }

 private:
  void expect_equal() const {
    const auto& a = emulated_;
    const auto& b = cpu_;
    EXPECT_EQ(a.sequence, b.sequence);
    EXPECT_EQ(a.compares, b.compares);
    EXPECT_EQ(a.mismatches, b.mismatches);
    EXPECT_EQ(a.skipped, b.skipped);
    EXPECT_EQ(a.longest_prefix, b.longest_prefix);
    EXPECT_EQ(a.max_abs, b.max_abs);
    EXPECT_EQ(a.max_ulp, b.max_ulp);
    EXPECT_EQ(a.worst_layer, b.worst_layer);
    EXPECT_EQ(a.worst_request, b.worst_request);
    EXPECT_EQ(a.worst_batch, b.worst_batch);
    EXPECT_EQ(a.worst_head, b.worst_head);
    EXPECT_EQ(a.worst_prefix, b.worst_prefix);
    EXPECT_NEAR(a.sum_mean_ulp, b.sum_mean_ulp, 1e-5 * (1 + b.sum_mean_ulp));
    if (std::isfinite(b.max_mean_ulp))
      EXPECT_NEAR(a.max_mean_ulp, b.max_mean_ulp, 1e-5 * (1 + b.max_mean_ulp));
    else
      EXPECT_EQ(a.max_mean_ulp, b.max_mean_ulp);
    for (int i = 0; i <= KDTREE_COMPARE_MAX_BATCH; ++i)
      EXPECT_EQ(a.compares_by_batch[i], b.compares_by_batch[i]);
  }

  kdtree_compare_accum emulated_{}, cpu_{};
  std::vector<uint64_t> workspace_ = std::vector<uint64_t>(1 << 14);
};

template <typename Cuda, typename Host>
void expect_same() {
  Both<Cuda, Host> both;
  const int32_t on = 1, off = 0;
  uint64_t seed = 0;
  for (const Call& call : {Call{9, 8, 1, 3}, Call{1, 1, 1, 0}, Call{20, 3, 4, 60},
                           Call{9, 16, 3, 7}, Call{300, 1, 300, 9}}) {
    for (const int32_t* enable : {&on, &off, static_cast<const int32_t*>(nullptr)}) {
      ++seed;
      both.add(Rows<Host>(call, seed), enable, seed);
    }
  }
  EXPECT_EQ(both.emulated().compares, 10U);
  EXPECT_GT(both.emulated().mismatches, 0U);

  Rows<Host> odd({4, 2, 2, 11}, 77);
  odd.engines(5) = Host::from(std::numeric_limits<float>::quiet_NaN());
  both.add(odd, nullptr, 1);
  EXPECT_EQ(both.emulated().skipped, 1U);
  odd.ours(7) = Host::from(std::numeric_limits<float>::infinity());
  both.add(odd, nullptr, 2);
  EXPECT_EQ(both.emulated().max_ulp, std::numeric_limits<double>::infinity());
  EXPECT_EQ(both.emulated().worst_layer, 11);
}

TEST(EmulatedCompare, Bf16) { expect_same<__nv_bfloat16, Bf16>(); }
TEST(EmulatedCompare, Fp16) { expect_same<__half, Fp16>(); }

}  // namespace
}  // namespace kdtree
