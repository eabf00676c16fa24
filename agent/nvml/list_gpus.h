// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "agent/util/result.h"

namespace kdtree {

struct GpuFacts {
  int index = 0;
  std::string name;        // "" = unknown
  std::string uuid;        // "GPU-..."; "" = unknown
  std::string arch;        // compute capability without the dot, "120"; "" = unknown
  std::string unreadable;  // "" = it answers; else why not
  std::optional<std::uint64_t> free_bytes = std::nullopt;  // of its memory; nullopt = unknown
};

struct GpuList {
  std::string driver;  // "" = unknown
  std::vector<GpuFacts> gpus;
};

// The GPUs of this host, asked once. `nvml_path`: "" = libnvidia-ml.so.1 as the loader finds it.
// Errors: refused, with what to do: no library, no driver, driver mismatch, no GPU, no answer
// before the deadline (the call is then left hanging in its own thread).
Result<GpuList> list_gpus(const std::string& nvml_path = {},
                          std::chrono::milliseconds deadline = std::chrono::seconds(10));

}  // namespace kdtree
