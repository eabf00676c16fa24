// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <kdtree/verify_attn.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

// How the CPU implementation and the fp64 reference read the params' host memory.
namespace kdtree {

inline int64_t load_index(const void* array, int32_t bits, int64_t at) {
  return bits == 64 ? static_cast<const int64_t*>(array)[at]
                    : static_cast<const int32_t*>(array)[at];
}

inline float from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline uint32_t to_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

struct Bf16 {
  uint16_t bits;
  float value() const { return from_bits(uint32_t{bits} << 16); }
  static Bf16 from(float x) {
    const uint32_t b = to_bits(x);
    if ((b & 0x7fffffffu) > 0x7f800000u) return {0x7fc0};
    return {static_cast<uint16_t>((b + 0x7fffu + ((b >> 16) & 1u)) >> 16)};
  }
};

struct Fp16 {
  uint16_t bits;
  float value() const {
    const uint32_t sign = (bits & 0x8000u) << 16;
    const uint32_t rest = (bits & 0x7fffu) << 13;
    const float scaled = from_bits(rest) * 0x1p112f;
    return from_bits(sign | (rest >= 0x0f800000u ? rest | 0x7f800000u : to_bits(scaled)));
  }
  static Fp16 from(float x) {
    const uint32_t sign = (to_bits(x) >> 16) & 0x8000u;
    const uint32_t b = to_bits(x) & 0x7fffffffu;
    if (b > 0x7f800000u) return {0x7e00};
    if (b >= 0x477ff000u) return {static_cast<uint16_t>(sign | 0x7c00u)};
    if (b < 0x38800000u) {  // subnormal: let the adder round
      const uint32_t r = to_bits(from_bits(b) + 0.5f) - to_bits(0.5f);
      return {static_cast<uint16_t>(sign | r)};
    }
    const uint32_t r = b + 0xfffu + ((b >> 13) & 1u);
    return {static_cast<uint16_t>(sign | ((r - 0x38000000u) >> 13))};
  }
};

struct Fp32 {
  float bits;
  float value() const { return bits; }
  static Fp32 from(float x) { return {x}; }
};

// fp8 e4m3: 4 bits of exponent (bias 7), 3 of mantissa, no infinity.
struct E4m3 {
  uint8_t bits;
  float value() const {
    const uint32_t rest = bits & 0x7fu;
    const uint32_t sign = uint32_t{bits & 0x80u} << 24;
    if (rest == 0x7fu) return from_bits(sign | 0x7fc00000u);
    return from_bits(sign | to_bits(from_bits(rest << 20) * 0x1p120f));
  }
  // To nearest even; what lies beyond +-448 becomes that.
  static E4m3 from(float x) {
    const auto sign = static_cast<uint8_t>((to_bits(x) >> 24) & 0x80u);
    const uint32_t b = to_bits(x) & 0x7fffffffu;
    if (b > 0x7f800000u) return {static_cast<uint8_t>(sign | 0x7fu)};
    if (b >= 0x43e00000u) return {static_cast<uint8_t>(sign | 0x7eu)};
    if (b < 0x3c800000u) {  // subnormal: let the adder round
      const uint32_t r = to_bits(from_bits(b) + 0x1p14f) - to_bits(0x1p14f);
      return {static_cast<uint8_t>(sign | r)};
    }
    const uint32_t r = b + 0x7ffffu + ((b >> 20) & 1u);
    return {static_cast<uint8_t>(sign | ((r - 0x3c000000u) >> 20))};
  }
};

// One request's rows, as verify_attn.h defines them. T: type of q and of the draft tokens; Kv: of
// the pool.
template <typename T, typename Kv = T>
class Request {
 public:
  Request(const kdtree_verify_attn_params& params, int64_t b)
      : p_(params),
        first_token_(load_index(p_.qo_indptr, p_.qo_indptr_bits, b)),
        tokens_(std::clamp<int64_t>(
            load_index(p_.qo_indptr, p_.qo_indptr_bits, b + 1) - first_token_, 0, p_.draft_tokens)),
        kv_start_(p_.kv_indptr[b]),
        prefix_(std::max<int64_t>(int64_t{p_.kv_indptr[b + 1]} - kv_start_, 0)),
        mask_(p_.mask == nullptr ? nullptr : p_.mask + p_.mask_indptr[b]) {}

  int64_t first_token() const { return first_token_; }
  int64_t tokens() const { return tokens_; }
  int64_t prefix() const { return prefix_; }
  int64_t keys() const { return prefix_ + tokens_; }

  const T* query(int64_t token, int64_t head) const {
    return static_cast<const T*>(p_.q) + (first_token_ + token) * p_.q_token_stride +
           head * p_.q_head_stride;
  }

  // Calls use(elements) with key t of [0, keys()): the prefix, then the draft tokens. Its first 512
  // elements are the value.
  template <typename Use>
  void key(int64_t t, const Use& use) const {
    if (t < prefix_) return use(slot(load_index(p_.kv_indices, p_.kv_indices_bits, kv_start_ + t)));
    const int64_t token = first_token_ + t - prefix_;
    if (p_.k_draft != nullptr)
      return use(static_cast<const T*>(p_.k_draft) + token * p_.k_draft_stride);
    use(slot(load_index(p_.out_cache_loc, p_.out_cache_loc_bits, token)));
  }

  // What q, key and value of key t go through before they are used.
  static float seen_by_prefix(float q) {
    if constexpr (std::is_same_v<T, Kv>) return q;
    return Kv::from(q).value();
  }
  double key_scale(int64_t t) const { return scaled(t) ? double{p_.k_scale} : 1.0; }
  double value_scale(int64_t t) const { return scaled(t) ? double{p_.v_scale} : 1.0; }

  bool sees(int64_t token, int64_t t) const {
    if (t < prefix_) return true;
    if (mask_ == nullptr) return t - prefix_ <= token;
    return mask_[token * keys() + t] != 0;
  }

 private:
  bool scaled(int64_t t) const { return !std::is_same_v<T, Kv> && t < prefix_; }

  const Kv* slot(int64_t index) const {
    const bool inside = index >= 0 && index < p_.kv_slots;
    return static_cast<const Kv*>(p_.kv_pool) +
           (inside ? index : p_.kv_slots - 1) * p_.kv_slot_stride;
  }

  const kdtree_verify_attn_params& p_;
  int64_t first_token_, tokens_, kv_start_, prefix_;
  const uint8_t* mask_;
};

}  // namespace kdtree
