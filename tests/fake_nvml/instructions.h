// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

// What the fake NVML shows at this moment; the file format is in README.md.
namespace fake_nvml {

inline constexpr int kMaxGpus = 16;

enum class Fail {
  none,
  lost,
  hung,
  unknown,
  no_permission,
  reset_required,
  driver_mismatch,
  driver_not_loaded
};

struct Gpu {
  unsigned utilization = 0;  // percent, now
  std::uint64_t memory_used = 1u << 30;
  unsigned power_mw = 90'000;
  unsigned temperature = 35;
  unsigned pcie_rx_kb = 0;
  unsigned pcie_tx_kb = 0;
  unsigned pcie_delay_ms = 0;
  Fail fail = Fail::none;
  std::set<std::string> not_supported;
};

struct Xid {
  std::uint64_t id = 0;
  int gpu = 0;
  std::uint64_t xid = 0;
};

struct Instructions {
  std::string driver = "580.95.05";
  Fail init = Fail::none;
  int count = 8;
  std::array<Gpu, kMaxGpus> gpus;
  std::vector<Xid> xids;
};

// nullopt: the file of KDTREE_FAKE_NVML can't be understood (said on stderr once a content).
std::optional<Instructions> instructions_now();

}  // namespace fake_nvml
