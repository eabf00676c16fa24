// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <utility>

#include "agent/nvml/gpu_reader.h"

namespace kdtree {
namespace {

constexpr double kMebibyte = 1024 * 1024;  // NVML: "PCIe traffic ... in MiB/sec"

struct Wanted {
  nvmlGpmMetricId_t id;
  std::optional<double> GpmValues::*to;
  double unit;
};
constexpr std::array<Wanted, 6> kWanted{{
    {NVML_GPM_METRIC_SM_UTIL, &GpmValues::sm_active, 0.01},
    {NVML_GPM_METRIC_SM_OCCUPANCY, &GpmValues::sm_occupancy, 0.01},
    {NVML_GPM_METRIC_ANY_TENSOR_UTIL, &GpmValues::tensor_active, 0.01},
    {NVML_GPM_METRIC_DRAM_BW_UTIL, &GpmValues::dram_active, 0.01},
    {NVML_GPM_METRIC_PCIE_RX_PER_SEC, &GpmValues::pcie_receive_bytes_per_second, kMebibyte},
    {NVML_GPM_METRIC_PCIE_TX_PER_SEC, &GpmValues::pcie_transmit_bytes_per_second, kMebibyte},
}};

}  // namespace

GpmReader::~GpmReader() {
  for (nvmlGpmSample_t sample : {before_, now_})
    if (sample != nullptr) nvml_.gpm_sample_free(sample);
}

bool GpmReader::begin(const NvmlCaller& caller) {
  if (use_ != Use::unknown) return use_ == Use::yes;
  use_ = Use::no;
  if (nvml_.gpm_support == nullptr || nvml_.gpm_sample_alloc == nullptr ||
      nvml_.gpm_sample_free == nullptr || nvml_.gpm_sample_get == nullptr ||
      nvml_.gpm_metrics_get == nullptr)
    return false;
  nvmlGpmSupport_t support{};
  support.version = NVML_GPM_SUPPORT_VERSION;
  if (caller([&] { return nvml_.gpm_support(device_, &support); }) != NVML_SUCCESS ||
      support.isSupportedDevice == 0)
    return false;
  for (nvmlGpmSample_t* sample : {&before_, &now_})
    if (caller([&] { return nvml_.gpm_sample_alloc(sample); }) != NVML_SUCCESS) {
      *sample = nullptr;
      return false;
    }
  wanted_ = std::make_unique<nvmlGpmMetricsGet_t>();
  use_ = Use::yes;
  return true;
}

void GpmReader::read(const NvmlCaller& caller, GpmValues& out) {
  if (!begin(caller)) return;
  const auto at = std::chrono::steady_clock::now();
  if (before_at_ && at - *before_at_ <= kLeastSpan) {
    out = last_;
    return;
  }
  last_ = {};
  if (caller([&] { return nvml_.gpm_sample_get(device_, now_); }) != NVML_SUCCESS) {
    before_at_.reset();
    return;
  }
  if (before_at_) {
    wanted_->version = NVML_GPM_METRICS_GET_VERSION;
    wanted_->numMetrics = kWanted.size();
    wanted_->sample1 = before_;
    wanted_->sample2 = now_;
    for (std::size_t i = 0; i < kWanted.size(); ++i) wanted_->metrics[i].metricId = kWanted[i].id;
    if (caller([&] { return nvml_.gpm_metrics_get(wanted_.get()); }) == NVML_SUCCESS)
      for (std::size_t i = 0; i < kWanted.size(); ++i)
        if (wanted_->metrics[i].nvmlReturn == NVML_SUCCESS && wanted_->metrics[i].value >= 0)
          last_.*kWanted[i].to = wanted_->metrics[i].value * kWanted[i].unit;
  }
  out = last_;
  std::swap(before_, now_);
  before_at_ = at;
}

}  // namespace kdtree
