// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <stdexcept>

#include "host_view.h"
#include "simt.h"

// kernel/src/ptx.cuh, emulated: fragments as the PTX manual lays them out.
namespace kdtree::ptx {

inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(static_cast<const char*>(pointer) - simt::shared_memory());
}
inline void copy16(uint32_t to, const void* from, uint32_t bytes) {
  simt::copy_async(to, from, bytes);
}
inline void copy_commit() { simt::copy_commit(); }
inline void prefetch_l2(const void* from) {
  static_cast<void>(*static_cast<const volatile char*>(from));  // a fault where there is nothing
}
template <int kPending>
void copy_wait() {
  simt::copy_wait(kPending);
}

template <int kCount, bool kTransposed>
void load_matrix(uint32_t (&r)[kCount], uint32_t from) {
  if (from % 16 != 0) throw std::runtime_error("ldmatrix is misaligned");
  const auto* all = simt::meet_warp(&from, sizeof from);
  const int lane = static_cast<int>(threadIdx.x % 32);
  for (int m = 0; m < kCount; ++m) {
    const auto element = [&](int row, int column) {
      const auto base = simt::read<uint32_t>(all[8 * m + row]);
      return simt::read<uint16_t>(simt::shared_memory() + base + 2 * column);
    };
    const int at = lane / 4, pair = 2 * (lane % 4);
    const uint32_t low = kTransposed ? element(pair, at) : element(at, pair);
    const uint32_t high = kTransposed ? element(pair + 1, at) : element(at, pair + 1);
    r[m] = low | high << 16;
  }
}
inline void load_matrix_x4(uint32_t (&r)[4], uint32_t from) { load_matrix<4, false>(r, from); }
inline void load_matrix_x2(uint32_t (&r)[2], uint32_t from) { load_matrix<2, false>(r, from); }
inline void load_matrix_x4_trans(uint32_t (&r)[4], uint32_t from) { load_matrix<4, true>(r, from); }
inline void load_matrix_x2_trans(uint32_t (&r)[2], uint32_t from) { load_matrix<2, true>(r, from); }

template <typename T>
float half_of(uint32_t two, int which) {
  const auto bits = static_cast<uint16_t>(two >> (16 * which));
  if constexpr (std::is_same_v<T, __half>) return Fp16{bits}.value();
  return Bf16{bits}.value();
}

template <typename T>
void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  struct Fragment {
    uint32_t a[4], b[2];
  };
  const Fragment own{{a[0], a[1], a[2], a[3]}, {b0, b1}};
  const auto* all = simt::meet_warp(&own, sizeof own);
  const int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, tig = lane % 4;
  for (int i = 0; i < 4; ++i) {
    const int half_row = i / 2, column = 2 * tig + i % 2;
    for (int t = 0; t < 4; ++t) {
      const auto left = simt::read<Fragment>(all[4 * g + t]);
      const auto right = simt::read<Fragment>(all[4 * column + t]);
      for (int k = 0; k < 2; ++k)
        for (int which = 0; which < 2; ++which)
          c[i] += half_of<T>(left.a[2 * k + half_row], which) * half_of<T>(right.b[k], which);
    }
  }
}

inline uint32_t widen(uint32_t two) {
  const auto of = [](uint32_t bits) {
    return uint32_t{Fp16::from(E4m3{static_cast<uint8_t>(bits)}.value()).bits};
  };
  return of(two & 0xffU) | of(two >> 8 & 0xffU) << 16;
}
inline float exp2_approx(float x) { return std::exp2(x); }
inline void add(uint32_t* counter, uint32_t amount) { *counter += amount; }
inline void launch_dependents() {}
inline void wait_for_previous() {}

}  // namespace kdtree::ptx
