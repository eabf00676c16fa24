// SPDX-License-Identifier: Apache-2.0
// The CPU implementation against the fp64 reference, both through the C ABI. The reference itself
// is held against torch by test_reference.py.
#include <gtest/gtest.h>
#include <kdtree/verify_attn.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "emulator/scene.h"
#include "host_view.h"

namespace kdtree {
namespace {

struct Shape {
  std::vector<int> prefixes;
  int draft_tokens;
  int heads;
};

template <typename T>
class Scene {
 public:
  explicit Scene(const Shape& shape) : shape_(shape), random_(7) {
    const int batch = static_cast<int>(shape.prefixes.size());
    const int tokens = batch * shape.draft_tokens;
    const int total = std::accumulate(shape.prefixes.begin(), shape.prefixes.end(), 0);
    fill(q_, tokens * shape.heads * KDTREE_QK_DIM);
    fill(k_draft_, tokens * KDTREE_QK_DIM);
    fill(pool_, (total + 1) * KDTREE_QK_DIM);
    out_.resize(static_cast<size_t>(tokens) * shape.heads * KDTREE_V_DIM);
    slots_.resize(static_cast<size_t>(total));
    std::iota(slots_.begin(), slots_.end(), 1);
    std::shuffle(slots_.begin(), slots_.end(), random_);
    qo_.push_back(0);
    kv_.push_back(0);
    mask_starts_.push_back(0);
    for (const int prefix : shape.prefixes) {
      qo_.push_back(qo_.back() + shape.draft_tokens);
      kv_.push_back(kv_.back() + prefix);
      mask_starts_.push_back(mask_starts_.back() +
                             shape.draft_tokens * (prefix + shape.draft_tokens));
    }
    mask_.resize(static_cast<size_t>(mask_starts_.back()));
    for (auto& byte : mask_) byte = static_cast<uint8_t>(random_() % 3);
    for (int b = 0; b < batch; ++b)  // every token sees itself
      for (int i = 0; i < shape.draft_tokens; ++i)
        mask_[static_cast<size_t>(
            mask_starts_[static_cast<size_t>(b)] +
            i * (shape.prefixes[static_cast<size_t>(b)] + shape.draft_tokens) +
            shape.prefixes[static_cast<size_t>(b)] + i)] = 1;
  }

  kdtree_verify_attn_params params(int32_t dtype, int32_t threads) {
    kdtree_verify_attn_params p{};
    p.struct_bytes = sizeof p;
    p.dtype = static_cast<int16_t>(dtype);
    p.batch = static_cast<int32_t>(shape_.prefixes.size());
    p.draft_tokens = shape_.draft_tokens;
    p.heads = shape_.heads;
    p.sm_scale = 1.0F / 24;
    p.threads = threads;
    p.q = q_.data();
    p.q_token_stride = int64_t{shape_.heads} * KDTREE_QK_DIM;
    p.q_head_stride = p.k_draft_stride = p.kv_slot_stride = KDTREE_QK_DIM;
    p.k_draft = k_draft_.data();
    p.kv_pool = pool_.data();
    p.kv_slots = static_cast<int32_t>(slots_.size()) + 1;
    p.out = out_.data();
    p.out_token_stride = int64_t{shape_.heads} * KDTREE_V_DIM;
    p.out_head_stride = KDTREE_V_DIM;
    p.qo_indptr = qo_.data();
    p.qo_indptr_bits = 64;
    p.kv_indptr = kv_.data();
    p.kv_indices = slots_.data();
    p.kv_indices_bits = 32;
    p.mask = mask_.data();
    p.mask_indptr = mask_starts_.data();
    return p;
  }

  std::vector<T>& out() { return out_; }

 private:
  void fill(std::vector<T>& values, int count) {
    std::normal_distribution<float> normal;
    values.resize(static_cast<size_t>(count));
    for (T& value : values) value = T::from(normal(random_));
  }

  Shape shape_;
  std::mt19937 random_;
  std::vector<T> q_, k_draft_, pool_, out_;
  std::vector<int32_t> slots_, kv_;
  std::vector<int64_t> qo_, mask_starts_;
  std::vector<uint8_t> mask_;
};

template <typename T>
double worst_difference(Scene<T>& scene, int32_t dtype, int32_t threads) {
  const kdtree_verify_attn_params p = scene.params(dtype, threads);
  std::fill(scene.out().begin(), scene.out().end(),
            T::from(std::numeric_limits<float>::quiet_NaN()));
  std::vector<double> want(scene.out().size());
  EXPECT_EQ(kdtree_verify_attn_cpu(&p), KDTREE_OK);
  EXPECT_EQ(kdtree_verify_attn_fp64(&p, want.data()), KDTREE_OK);
  double worst = 0;
  for (size_t row = 0; row < want.size(); row += KDTREE_V_DIM) {
    double off = 0, norm = 0;
    for (size_t d = row; d < row + KDTREE_V_DIM; ++d) {
      off += std::pow(double{scene.out()[d].value()} - want[d], 2);
      norm += want[d] * want[d];
    }
    const double relative = std::sqrt(off / norm);
    worst =
        std::isnan(relative) ? std::numeric_limits<double>::infinity() : std::max(worst, relative);
  }
  return worst;
}

const std::vector<Shape> kShapes = {
    {{0}, 1, 1}, {{1}, 9, 3}, {{31, 0, 32, 33}, 5, 2}, {{200, 7}, 17, 1}, {{15, 16, 17}, 2, 8},
};

TEST(VerifyAttnCpu, Bf16IsRight) {
  for (const Shape& shape : kShapes) {
    Scene<Bf16> scene(shape);
    EXPECT_LT(worst_difference(scene, KDTREE_BF16, 2), 3e-3);
  }
}

TEST(VerifyAttnCpu, Fp16IsRight) {
  for (const Shape& shape : kShapes) {
    Scene<Fp16> scene(shape);
    EXPECT_LT(worst_difference(scene, KDTREE_FP16, 2), 4e-4);
  }
}

TEST(VerifyAttnCpu, Fp32IsRight) {
  for (const Shape& shape : kShapes) {
    Scene<Fp32> scene(shape);
    EXPECT_LT(worst_difference(scene, KDTREE_FP32, 2), 1e-6);
  }
}

TEST(VerifyAttnCpu, E4m3PoolIsRight) {
  for (const auto& [prefixes, draft_tokens, heads] : kShapes) {
    const emulator::SceneShape shape{prefixes, draft_tokens, heads, 0};
    emulator::Scene<Bf16, true> wide(shape);
    kdtree_verify_attn_params p = wide.params();
    ASSERT_EQ(kdtree_verify_attn_cpu(&p), KDTREE_OK);
    EXPECT_LT(wide.worst_difference(p), 3e-3);
    for (float kdtree_verify_attn_params::*scale :
         {&kdtree_verify_attn_params::k_scale, &kdtree_verify_attn_params::v_scale}) {
      if (prefixes[0] < 2) continue;  // one key: its score doesn't matter
      kdtree_verify_attn_params other = p;
      other.*scale *= 2;
      EXPECT_GT(wide.worst_difference(other), 0.05);
    }
    emulator::Scene<Fp16, true> half(shape);
    p = half.params();
    ASSERT_EQ(kdtree_verify_attn_cpu(&p), KDTREE_OK);
    EXPECT_LT(half.worst_difference(p), 4e-4);
  }
}

// Against the definition: the nearest of all finite values, of two the one whose last bit is 0.
TEST(E4m3, EveryCodeAndRounding) {
  for (int code = 0; code < 256; ++code) {
    const E4m3 one{static_cast<uint8_t>(code)};
    const int exponent = code >> 3 & 15;
    const int mantissa = code & 7;
    if ((code & 127) == 127) {
      EXPECT_TRUE(std::isnan(one.value()));
    } else {
      const double size =
          exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
      EXPECT_EQ(one.value(), code >= 128 ? -size : size);
      EXPECT_EQ(E4m3::from(one.value()).bits, code);
    }
  }
  std::mt19937 random(3);
  std::uniform_real_distribution<double> exponent(-13, 10);
  for (int i = 0; i < 20'000; ++i) {
    double exact = std::exp2(exponent(random));
    if (i % 4 == 0) exact = std::ldexp(std::round(std::ldexp(exact, 10)), -10);  // ties
    const auto x = static_cast<float>(exact);
    int best = 0;
    for (int code = 1; code < 127; ++code) {
      const auto distance = [&](int c) {
        return std::abs(double{E4m3{static_cast<uint8_t>(c)}.value()} - double{x});
      };
      if (distance(code) < distance(best) || (distance(code) == distance(best) && code % 2 == 0))
        best = code;
    }
    ASSERT_EQ(E4m3::from(x).bits, best) << x;
    ASSERT_EQ(E4m3::from(-x).bits, best | 128) << x;
  }
  EXPECT_EQ(E4m3::from(std::numeric_limits<float>::infinity()).bits, 0x7e);
  EXPECT_EQ(E4m3::from(std::numeric_limits<float>::quiet_NaN()).bits & 0x7f, 0x7f);
}

TEST(VerifyAttnCpu, ThreadsDoNotChangeABit) {
  Scene<Bf16> scene({{200, 7, 40}, 17, 4});
  std::vector<uint16_t> first;
  for (const int32_t threads : {1, 2, 5, 0}) {
    worst_difference(scene, KDTREE_BF16, threads);
    std::vector<uint16_t> bits;
    for (const Bf16 value : scene.out()) bits.push_back(value.bits);
    if (first.empty()) first = bits;
    EXPECT_EQ(bits, first) << threads;
  }
}

}  // namespace
}  // namespace kdtree
