// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <system_error>
#include <thread>
#include <vector>

namespace kdtree {

// Calls work(i) for each i in [0, count), on this thread and up to threads - 1 more (0 = one a
// core). Where the system gives no further thread, those at hand do all of it.
template <typename Work>
void parallel_for(int64_t count, int64_t threads, const Work& work) {
  if (threads <= 0) threads = static_cast<int64_t>(std::thread::hardware_concurrency());
  std::atomic<int64_t> next{0};
  const auto drain = [&] {
    for (int64_t i = next++; i < count; i = next++) work(i);
  };
  std::vector<std::jthread> helpers;
  for (int64_t i = 1; i < std::min(threads, count); ++i) {
    try {
      helpers.emplace_back(drain);
    } catch (const std::system_error&) {
      break;
    }
  }
  drain();
}

}  // namespace kdtree
