// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
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

struct Process {
  unsigned pid = 0;
  std::uint64_t memory = 0;
};

struct Gpu {
  std::string uuid;
  std::vector<unsigned> utilization{0};  // percent; walked through, one each step_ms of boot time
  double step_ms = 1000;
  bool wave = false;
  double sample_ms = 20;  // between two entries of the sample buffer
  std::uint64_t memory_used = 1u << 30;
  unsigned power_mw = 90'000;
  unsigned power_limit_mw = 600'000;
  std::uint64_t energy_mj = 0;
  unsigned temperature = 35;
  unsigned sm_mhz = 2400, memory_mhz = 14'001;
  unsigned sm_max_mhz = 3090, memory_max_mhz = 14'001;
  std::uint64_t clock_events = 0;
  std::uint64_t ecc_corrected = 0, ecc_uncorrected = 0;
  std::vector<Process> processes;
  std::map<unsigned, double> gpm;  // by nvmlGpmMetricId_t; empty = not supported
  unsigned pcie_rx_kb = 0;
  unsigned pcie_tx_kb = 0;
  unsigned pcie_delay_ms = 0;
  Fail fail = Fail::none;
  bool until_init = false;  // a failure stays until nvmlInit, whatever the file says later
  std::set<std::string> not_supported;

  unsigned utilization_at(double ms, int index) const;
};

struct Xid {
  std::uint64_t id = 0;
  int gpu = 0;
  std::uint64_t xid = 0;
};

struct Instructions {
  std::string driver = "580.95.05";
  int load = 1;  // which loading of the driver this is: handles of another one are dead
  Fail init = Fail::none;
  int count = 8;
  std::array<Gpu, kMaxGpus> gpus;
  std::vector<Xid> xids;
};

double boot_ms();

// nullptr: the file of KDTREE_FAKE_NVML can't be understood (said on stderr once a content).
std::shared_ptr<const Instructions> instructions_now();

}  // namespace fake_nvml
