// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <kdtree/verify_attn.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <type_traits>
#include <vector>

#include "host_view.h"

// A random verify call in host memory and how far an answer is from the fp64 reference.
namespace kdtree::emulator {

struct SceneShape {
  std::vector<int> prefixes;
  int draft_tokens;
  int heads;
  int nsplit = 0;
};

// Memory whose first element is 16-byte aligned.
template <typename T>
class Aligned {
 public:
  explicit Aligned(std::size_t count) : bytes_(count * sizeof(T) + 16) {}
  T* data() {
    return reinterpret_cast<T*>(bytes_.data() + 16 -
                                reinterpret_cast<uintptr_t>(bytes_.data()) % 16);
  }

 private:
  std::vector<char> bytes_;
};

template <typename T, bool kFp8 = false>
class Scene {
 public:
  using Kv = std::conditional_t<kFp8, E4m3, T>;

  explicit Scene(const SceneShape& shape)
      : shape_(shape),
        tokens_(shape.prefixes.size() * static_cast<std::size_t>(shape.draft_tokens)),
        slots_(static_cast<std::size_t>(
            std::accumulate(shape.prefixes.begin(), shape.prefixes.end(), 0))),
        q_(tokens_ * static_cast<std::size_t>(shape.heads) * KDTREE_QK_DIM),
        k_draft_(tokens_ * KDTREE_QK_DIM),
        pool_((slots_.size() + 1) * KDTREE_QK_DIM),
        out_(tokens_ * static_cast<std::size_t>(shape.heads) * KDTREE_V_DIM) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    const auto fill = [&](auto* at, std::size_t count, float size) {
      for (std::size_t i = 0; i < count; ++i)
        at[i] = std::remove_reference_t<decltype(*at)>::from(size * normal(random));
    };
    fill(q_.data(), q_count(), 2.0F);
    fill(k_draft_.data(), tokens_ * KDTREE_QK_DIM, 1.0F);
    fill(pool_.data(), (slots_.size() + 1) * KDTREE_QK_DIM, 2.0F);
    std::iota(slots_.begin(), slots_.end(), 1);
    std::shuffle(slots_.begin(), slots_.end(), random);
    qo_.push_back(0);
    kv_.push_back(0);
    mask_starts_.push_back(0);
    for (const int prefix : shape.prefixes) {
      qo_.push_back(qo_.back() + shape.draft_tokens);
      kv_.push_back(kv_.back() + prefix);
      mask_starts_.push_back(mask_starts_.back() +
                             int64_t{shape.draft_tokens} * (prefix + shape.draft_tokens));
    }
    mask_.resize(static_cast<std::size_t>(mask_starts_.back()));
    for (auto& byte : mask_) byte = static_cast<uint8_t>(random() % 3);
    for (std::size_t b = 0; b < shape.prefixes.size(); ++b)  // every token sees itself
      for (int i = 0; i < shape.draft_tokens; ++i) {
        const int prefix = shape.prefixes[b];
        mask_[static_cast<std::size_t>(mask_starts_[b] + i * (prefix + shape.draft_tokens) +
                                       prefix + i)] = 1;
      }
  }

  kdtree_verify_attn_params params() {
    kdtree_verify_attn_params p{};
    p.struct_bytes = sizeof p;
    p.dtype = std::is_same_v<T, Bf16>   ? KDTREE_BF16
              : std::is_same_v<T, Fp16> ? KDTREE_FP16
                                        : KDTREE_FP32;
    p.kv_dtype = kFp8 ? KDTREE_KV_E4M3 : KDTREE_KV_SAME;
    p.k_scale = 0.5F;
    p.v_scale = 0.75F;
    p.batch = static_cast<int32_t>(shape_.prefixes.size());
    p.draft_tokens = shape_.draft_tokens;
    p.heads = shape_.heads;
    p.sm_scale = 1.0F / 24;
    p.threads = 1;
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

  // Not a number wherever nothing is written after it.
  void spoil_out() {
    std::fill_n(out_.data(), out_count(), T::from(std::numeric_limits<float>::quiet_NaN()));
  }

  std::vector<T> out() { return std::vector<T>(out_.data(), out_.data() + out_count()); }

  // Of what lies in out, by the worst row; Inf where something is not a number.
  double worst_difference(const kdtree_verify_attn_params& p) {
    std::vector<double> want(out_count());
    EXPECT_EQ(kdtree_verify_attn_fp64(&p, want.data()), KDTREE_OK);
    double worst = 0;
    for (std::size_t row = 0; row < want.size(); row += KDTREE_V_DIM) {
      double off = 0, norm = 0;
      for (std::size_t d = row; d < row + KDTREE_V_DIM; ++d) {
        off += std::pow(double{out_.data()[d].value()} - want[d], 2);
        norm += want[d] * want[d];
      }
      const double relative = std::sqrt(off / norm);
      worst = std::isnan(relative) ? std::numeric_limits<double>::infinity()
                                   : std::max(worst, relative);
    }
    return worst;
  }

 private:
  std::size_t q_count() const {
    return tokens_ * static_cast<std::size_t>(shape_.heads) * KDTREE_QK_DIM;
  }
  std::size_t out_count() const {
    return tokens_ * static_cast<std::size_t>(shape_.heads) * KDTREE_V_DIM;
  }

  SceneShape shape_;
  std::size_t tokens_;
  std::vector<int32_t> slots_;
  Aligned<T> q_, k_draft_;
  Aligned<Kv> pool_;
  Aligned<T> out_;
  std::vector<int32_t> kv_;
  std::vector<int64_t> qo_, mask_starts_;
  std::vector<uint8_t> mask_;
};

}  // namespace kdtree::emulator
