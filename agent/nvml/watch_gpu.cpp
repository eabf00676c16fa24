// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "agent/nvml/sampler_state.h"

namespace kdtree {
namespace {

using std::chrono::steady_clock;

GpuCondition condition_of(nvmlReturn_t result) {
  switch (result) {
    case NVML_ERROR_GPU_IS_LOST:
      return GpuCondition::lost;
    case NVML_ERROR_RESET_REQUIRED:
      return GpuCondition::reset_required;
    case NVML_ERROR_NO_PERMISSION:
      return GpuCondition::no_permission;
    default:
      return GpuCondition::error;
  }
}

class GpuWatcher {
 public:
  GpuWatcher(GpuSampler::State& state, const SamplerRun& run, int index)
      : state_(state), nvml_(run.session->nvml()), session_(run.number), index_(index) {
    const std::lock_guard lock(state_.mutex);
    bind(last_known_as());
  }

  void sample() {
    if (reader_ == nullptr && !find_device()) return;
    const auto began = steady_clock::now();
    GpuValues values;
    if (!passes(reader_->read(values, samples_, state_.options.period))) return;
    const bool gpm_has_pcie = values.gpm.pcie_receive_bytes_per_second.has_value();
    keep(values, began);
    if (slow_due_ > steady_clock::now()) return;
    slow_due_ = steady_clock::now() + state_.options.slow_period;
    GpuSlowValues slow;
    if (!passes(reader_->read_slow(slow, !gpm_has_pcie))) return;
    const std::lock_guard lock(state_.mutex);
    slot_->slow = std::move(slow);
    slot_->slow_at = steady_clock::now();
  }

 private:
  // The GPU that had this index last; NVML may have numbered them anew, which find_device() sees.
  std::string last_known_as() const {
    for (const auto& [key, slot] : state_.gpus)
      if (slot.index == index_ && slot.session + 1 == session_) return key;
    return "#" + std::to_string(index_);
  }

  // Makes this thread the one that fills `key`'s slot. With the lock held.
  void bind(const std::string& key) {
    slot_ = &state_.gpus[key];  // map nodes stay where they are
    slot_->index = index_;
    slot_->session = session_;
    slot_->in_call.end();
  }

  nvmlReturn_t call(const NvmlCall& what) { return timed_call(slot_->in_call, what); }

  // True: go on. False: the GPU is in a bad way, and that was recorded.
  bool passes(nvmlReturn_t result) {
    if (result == NVML_SUCCESS) return true;
    reader_.reset();
    integrated_to_.reset();
    const std::lock_guard lock(state_.mutex);
    slot_->condition = condition_of(result);
    slot_->detail = nvml_.text_of(result);
    return false;
  }

  // Identity: a GPU that can't tell its name or address is still one.
  nvmlReturn_t identify(nvmlDevice_t device, std::string& uuid, std::string& name,
                        std::string& pci_bus_id) {
    char text[NVML_DEVICE_UUID_V2_BUFFER_SIZE] = "";
    nvmlPciInfo_t pci{};
    nvmlReturn_t result = NVML_SUCCESS;
    const auto fine = [&] { return result == NVML_SUCCESS || only_unknown(result); };
    if (nvml_.uuid != nullptr) {
      result = call([&] { return nvml_.uuid(device, text, sizeof text); });
      if (!fine()) return result;
      uuid = text;
    }
    *text = '\0';
    if (nvml_.name != nullptr) {
      result = call([&] { return nvml_.name(device, text, sizeof text); });
      if (!fine()) return result;
      name = text;
    }
    if (nvml_.pci_info != nullptr) {
      result = call([&] { return nvml_.pci_info(device, &pci); });
      if (!fine()) return result;
      pci_bus_id = pci.busId;
    }
    return NVML_SUCCESS;
  }

  bool find_device() {
    nvmlDevice_t device = nullptr;
    auto result =
        call([&] { return nvml_.device_by_index(static_cast<unsigned>(index_), &device); });
    std::string uuid;
    std::string name;
    std::string pci_bus_id;
    if (result == NVML_SUCCESS) result = identify(device, uuid, name, pci_bus_id);
    if (!passes(result)) return false;
    {
      const std::lock_guard lock(state_.mutex);
      if (!uuid.empty() && slot_->uuid != uuid) {
        if (slot_->uuid.empty())
          state_.gpus.erase("#" + std::to_string(index_));
        else if (slot_->index == index_)
          slot_->session = 0;  // nobody watches that one, unless it is found at another index
        bind(uuid);
      }
      slot_->uuid = uuid;
      slot_->name = name;
      slot_->pci_bus_id = pci_bus_id;
    }
    reader_ = std::make_unique<GpuReader>(nvml_, device,
                                          [this](const NvmlCall& what) { return call(what); });
    slow_due_ = {};
    return true;
  }

  // Utilisation x time, from sample to sample; three periods without one are a gap, not a long
  // sample.
  void integrate() {
    for (const UtilizationSample& sample : samples_) {
      slot_->spread.add(sample.value);
      if (integrated_to_) {
        const std::chrono::duration<double> span = sample.at - *integrated_to_;
        if (span.count() > 0 && span <= 3 * state_.options.period) {
          slot_->busy += span * sample.value;
          slot_->observed += span;
        }
      }
      integrated_to_ = sample.at;
    }
  }

  void keep_high(const GpuValues& values, SteadyTime now) {
    if (values.utilization_max) slot_->highs.emplace_back(now, *values.utilization_max);
    while (!slot_->highs.empty() && now - slot_->highs.front().first > kMaxSpan)
      slot_->highs.pop_front();
  }

  void keep_clock_events(const GpuValues& values, SteadyTime now) {
    const std::chrono::duration<double> span = now - slot_->sampled_at.value_or(now);
    if (!values.clock_events || span > 3 * state_.options.period) return;
    for (std::size_t i = 0; i < kClockEvents.size(); ++i)
      if ((*values.clock_events)[i]) slot_->clock_event_time[i] += span;
  }

  void keep(const GpuValues& values, SteadyTime began) {
    const auto now = steady_clock::now();
    const std::lock_guard lock(state_.mutex);
    integrate();
    keep_high(values, now);
    keep_clock_events(values, now);
    slot_->values = values;
    slot_->condition = GpuCondition::ok;
    slot_->detail.clear();
    slot_->sample_took = now - began;
    slot_->sampled_at = now;
  }

  GpuSampler::State& state_;
  const NvmlLibrary& nvml_;
  const std::uint64_t session_;
  const int index_;
  GpuSlot* slot_ = nullptr;
  std::unique_ptr<GpuReader> reader_;
  std::vector<UtilizationSample> samples_;
  std::optional<std::chrono::microseconds> integrated_to_;  // on NVML's clock
  SteadyTime slow_due_;
};

}  // namespace

void watch_gpu(const SharedState& state, const SharedRun& run, int index) {
  GpuWatcher watcher(*state, *run, index);
  auto next = steady_clock::now();
  do {
    watcher.sample();
    next = std::max(next + state->options.period, steady_clock::now());
  } while (sleep_until(*state, *run, next));
}

}  // namespace kdtree
