// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <vector_functions.h>
#include <vector_types.h>

#include <cstddef>
#include <cstdint>
#include <functional>

// Runs CUDA kernels on the CPU, from their own source: a block's threads are fibers that switch
// only where they meet (barriers, shuffles, ldmatrix, mma), in an order that a seed draws. Include
// this before any kernel header, in a file that is compiled with KDTREE_EMULATED.
//
// It is exact about who reads what from where; fp32 sums are made in another order than on a GPU.
// It knows nothing of time, caches or weak memory: what it passes can still race on a GPU.
namespace simt {

// When cp.async takes effect: as early as it may, or as late.
enum class Copies { early, late };

struct Block {
  unsigned grid;
  unsigned threads;
  uint64_t seed = 0;
  Copies copies = Copies::late;
};

// Runs `kernel` for each thread of each block, block after block in an order that the seed draws.
// Errors: std::runtime_error: threads wait for each other for ever, or an access is misaligned.
void run(const Block& block, const std::function<void()>& kernel);

struct Index {
  unsigned x;
};
Index thread();
Index block();

inline constexpr std::size_t kPayload = 64;

// Every thread of a warp comes with its bytes and gets all 32.
const char (*meet_warp(const void* bytes, std::size_t size))[kPayload];
int meet_block(bool value);  // how many threads came with true

char* shared_memory();  // of the block; 101,376 bytes
void copy_async(uint32_t to, const void* from, uint32_t bytes);
void copy_commit();
void copy_wait(int pending);

template <typename T>
T read(const char* at) {
  T value;
  __builtin_memcpy(&value, at, sizeof value);
  return value;
}

}  // namespace simt

#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __shared__
#define __shared__ thread_local
#undef __device__
#define __device__
#undef __global__
#define __global__
#undef __grid_constant__
#define __grid_constant__
#undef __forceinline__
#define __forceinline__ inline
#undef __align__
#define __align__(n) __attribute__((aligned(n)))
#define threadIdx (simt::thread())
#define blockIdx (simt::block())

namespace kdtree {
alignas(128) inline constinit thread_local char shared[101376]{};
}

inline void __syncthreads() { simt::meet_block(false); }
inline int __syncthreads_or(int value) { return simt::meet_block(value != 0) > 0 ? 1 : 0; }
inline int __syncthreads_count(int value) { return simt::meet_block(value != 0); }
inline void __threadfence() {}
inline void __threadfence_system() {}
template <typename T>
T __shfl_sync(unsigned, T value, int from) {
  return simt::read<T>(simt::meet_warp(&value, sizeof value)[from % 32]);
}
template <typename T>
T __shfl_xor_sync(unsigned, T value, int by) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  return simt::read<T>(simt::meet_warp(&value, sizeof value)[lane ^ by]);
}
template <typename T>
T __shfl_up_sync(unsigned, T value, int by) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  return simt::read<T>(simt::meet_warp(&value, sizeof value)[lane < by ? lane : lane - by]);
}
inline int __reduce_add_sync(unsigned, int value) {
  const auto* all = simt::meet_warp(&value, sizeof value);
  int sum = 0;
  for (int lane = 0; lane < 32; ++lane) sum += simt::read<int>(all[lane]);
  return sum;
}
inline unsigned __ballot_sync(unsigned, int value) {
  const auto* all = simt::meet_warp(&value, sizeof value);
  unsigned bits = 0;
  for (int lane = 0; lane < 32; ++lane) bits |= (simt::read<int>(all[lane]) != 0 ? 1U : 0U) << lane;
  return bits;
}
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline uint32_t __byte_perm(uint32_t low, uint32_t high, uint32_t selector) {
  const uint64_t bytes = static_cast<uint64_t>(high) << 32 | low;
  uint32_t result = 0;
  for (unsigned i = 0; i < 4; ++i)
    result |= static_cast<uint32_t>(bytes >> (8 * (selector >> (4 * i) & 7U)) & 0xffU) << (8 * i);
  return result;
}
inline unsigned atomicMax(unsigned* at, unsigned value) {
  const unsigned before = *at;
  if (value > before) *at = value;
  return before;
}
inline unsigned atomicInc(unsigned* at, unsigned most) {
  const unsigned before = *at;
  *at = before >= most ? 0 : before + 1;
  return before;
}
inline unsigned atomicAdd(unsigned* at, unsigned value) {
  const unsigned before = *at;
  *at += value;
  return before;
}
