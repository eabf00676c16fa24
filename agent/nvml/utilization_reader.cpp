// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "agent/nvml/gpu_reader.h"

namespace kdtree {
namespace {

// After so many readings without a new sample the clock was set back, and all of the buffer is
// asked for again.
constexpr int kEmptyReadings = 10;

std::optional<double> percent_of(nvmlValueType_t type, const nvmlValue_t& value) {
  double percent = -1;
  switch (type) {
    case NVML_VALUE_TYPE_DOUBLE:
      percent = value.dVal;
      break;
    case NVML_VALUE_TYPE_UNSIGNED_INT:
      percent = value.uiVal;
      break;
    case NVML_VALUE_TYPE_UNSIGNED_LONG:
      percent = static_cast<double>(value.ulVal);
      break;
    case NVML_VALUE_TYPE_UNSIGNED_LONG_LONG:
      percent = static_cast<double>(value.ullVal);
      break;
    default:
      break;
  }
  if (percent < 0 || percent > 100) return std::nullopt;
  return percent;
}

}  // namespace

nvmlReturn_t UtilizationReader::read_buffer(const NvmlLibrary& nvml, nvmlDevice_t device,
                                            const NvmlCaller& caller) {
  nvmlValueType_t type = NVML_VALUE_TYPE_UNSIGNED_INT;
  auto count = static_cast<unsigned>(buffer_.capacity());
  if (count == 0) {
    const auto sized = caller([&] {
      return nvml.samples(device, NVML_GPU_UTILIZATION_SAMPLES, 0, &type, &count, nullptr);
    });
    if (sized != NVML_SUCCESS) return sized;
    if (count == 0 || count > 10'000) return NVML_ERROR_NOT_FOUND;
    buffer_.reserve(count);
  }
  buffer_.resize(count);
  const auto result = caller([&] {
    return nvml.samples(device, NVML_GPU_UTILIZATION_SAMPLES, last_seen_, &type, &count,
                        buffer_.data());
  });
  buffer_.resize(result == NVML_SUCCESS ? std::min<std::size_t>(count, buffer_.size()) : 0);
  std::erase_if(buffer_, [&](const nvmlSample_t& sample) {
    return sample.timeStamp <= last_seen_ || !percent_of(type, sample.sampleValue);
  });
  for (nvmlSample_t& sample : buffer_)
    sample.sampleValue.dVal = *percent_of(type, sample.sampleValue);
  return result;
}

nvmlReturn_t UtilizationReader::read(const NvmlLibrary& nvml, nvmlDevice_t device,
                                     const NvmlCaller& caller, std::chrono::microseconds period,
                                     std::vector<UtilizationSample>& out) {
  out.clear();
  if (nvml.samples != nullptr) {
    const auto result = read_buffer(nvml, device, caller);
    if (result != NVML_SUCCESS && result != NVML_ERROR_NOT_FOUND && !only_unknown(result))
      return result;
    if (!buffer_.empty()) {
      std::sort(buffer_.begin(), buffer_.end(),
                [](const auto& a, const auto& b) { return a.timeStamp < b.timeStamp; });
      // Of the first reading only what is as young as a period: the rest was before our time.
      const auto newest = buffer_.back().timeStamp;
      const auto since =
          last_seen_ == 0 ? newest - static_cast<unsigned long long>(period.count()) : last_seen_;
      for (const nvmlSample_t& sample : buffer_)
        if (sample.timeStamp > since)
          out.push_back(
              {std::chrono::microseconds(sample.timeStamp), sample.sampleValue.dVal / 100});
      last_seen_ = newest;
      empty_readings_ = 0;
      return NVML_SUCCESS;
    }
    if (++empty_readings_ % kEmptyReadings == 0) last_seen_ = 0;
  }
  if (nvml.utilization == nullptr) return NVML_ERROR_FUNCTION_NOT_FOUND;
  nvmlUtilization_t rates{};
  const auto result = caller([&] { return nvml.utilization(device, &rates); });
  if (result == NVML_SUCCESS && rates.gpu <= 100)
    out.push_back({std::chrono::duration_cast<std::chrono::microseconds>(
                       std::chrono::steady_clock::now().time_since_epoch()),
                   rates.gpu / 100.0});
  return result;
}

}  // namespace kdtree
