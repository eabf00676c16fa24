// SPDX-License-Identifier: Apache-2.0
// The CPU implementation against the fp64 reference, both through the C ABI. The reference itself
// is held against torch by test_reference.py.
#include <gtest/gtest.h>
#include <kdtree/verify_attn.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "emulator/scene.h"
#include "host_view.h"

namespace kdtree {
namespace {

using emulator::Scene;
using emulator::SceneShape;

template <typename T, bool kFp8>
double worst_difference(Scene<T, kFp8>& scene, int32_t threads) {
  kdtree_verify_attn_params p = scene.params();
  p.threads = threads;
  scene.spoil_out();
  EXPECT_EQ(kdtree_verify_attn_cpu(&p), KDTREE_OK);
  return scene.worst_difference(p);
}

const std::vector<SceneShape> kShapes = {
    {{0}, 1, 1}, {{1}, 9, 3}, {{31, 0, 32, 33}, 5, 2}, {{200, 7}, 17, 1}, {{15, 16, 17}, 2, 8},
};

TEST(VerifyAttnCpu, Bf16IsRight) {
  for (const SceneShape& shape : kShapes) {
    Scene<Bf16> scene(shape);
    EXPECT_LT(worst_difference(scene, 2), 3e-3);
  }
}

TEST(VerifyAttnCpu, Fp16IsRight) {
  for (const SceneShape& shape : kShapes) {
    Scene<Fp16> scene(shape);
    EXPECT_LT(worst_difference(scene, 2), 4e-4);
  }
}

TEST(VerifyAttnCpu, Fp32IsRight) {
  for (const SceneShape& shape : kShapes) {
    Scene<Fp32> scene(shape);
    EXPECT_LT(worst_difference(scene, 2), 2e-6);
  }
}

TEST(VerifyAttnCpu, E4m3PoolIsRight) {
  for (const SceneShape& shape : kShapes) {
    Scene<Bf16, true> wide(shape);
    EXPECT_LT(worst_difference(wide, 2), 3e-3);
    for (float kdtree_verify_attn_params::*scale :
         {&kdtree_verify_attn_params::k_scale, &kdtree_verify_attn_params::v_scale}) {
      if (shape.prefixes[0] < 2) continue;  // one key: its score doesn't matter
      kdtree_verify_attn_params other = wide.params();
      other.*scale *= 2;
      EXPECT_GT(wide.worst_difference(other), 0.05);
    }
    Scene<Fp16, true> half(shape);
    EXPECT_LT(worst_difference(half, 2), 4e-4);
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
    worst_difference(scene, threads);
    std::vector<uint16_t> bits;
    for (const Bf16 value : scene.out()) bits.push_back(value.bits);
    if (first.empty()) first = bits;
    EXPECT_EQ(bits, first) << threads;
  }
}

}  // namespace
}  // namespace kdtree
