// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <set>

#include "agent/nvml/gpu_reader.h"
#include "agent/nvml/gpu_sampler.h"
#include "agent/nvml/nvml_library.h"

// Inside of GpuSampler. Every thread owns the state, so one that hangs in NVML for ever leaves
// nothing dangling.
namespace kdtree {

using SteadyTime = std::chrono::steady_clock::time_point;

// Since when a thread is inside NVML. Concurrency: that thread writes, anyone reads, without a
// lock.
class InCall {
 public:
  void begin() { since_ = std::chrono::steady_clock::now().time_since_epoch().count(); }
  void end() { since_ = 0; }
  std::optional<SteadyTime> since() const {
    const auto ticks = since_.load();
    return ticks == 0 ? std::nullopt : std::optional(SteadyTime(SteadyTime::duration(ticks)));
  }

 private:
  std::atomic<SteadyTime::rep> since_{0};
};

// What is known of one GPU; guarded by GpuSampler::State::mutex.
struct GpuSlot {
  int index = 0;
  std::uint64_t session = 0;  // number of the session whose thread watches it
  std::string uuid, name, pci_bus_id;
  std::optional<GpuCondition> condition;
  std::string detail;
  InCall in_call;
  std::optional<SteadyTime> sampled_at;  // last good sample
  std::optional<SteadyTime> slow_at;
  std::chrono::duration<double> sample_took{0};
  GpuValues values;
  GpuSlowValues slow;
  std::deque<std::pair<SteadyTime, double>> highs;  // highest utilisation sample of each reading
  std::chrono::duration<double> busy{0};
  std::chrono::duration<double> observed{0};
  UtilizationSpread spread;
  std::array<std::chrono::duration<double>, kClockEvents.size()> clock_event_time{};
  std::map<std::uint64_t, XidCount> xids;
};

struct GpuSampler::State {
  explicit State(GpuSamplerOptions chosen) : options(std::move(chosen)) {}

  const GpuSamplerOptions options;
  mutable std::mutex mutex;
  std::condition_variable changed;
  bool stop = false;
  int threads = 0;

  std::optional<NvmlError> failure = NvmlError{NvmlFailure::starting, "no answer yet"};
  InCall supervisor_in_call;
  std::string driver;
  unsigned visible = 0;
  std::uint64_t session = 0;  // counts them
  SteadyTime session_began;
  InCall events_in_call;
  std::set<int> events_registered;
  std::map<std::string, GpuSlot> gpus;  // by UUID; by "#index" while that is not known
};

// The threads between one nvmlInit and its end.
struct SamplerRun {
  std::shared_ptr<const NvmlSession> session;
  std::uint64_t number = 0;
  std::atomic<bool> over{false};
};

using SharedState = std::shared_ptr<GpuSampler::State>;
using SharedRun = std::shared_ptr<SamplerRun>;

void watch_gpu(const SharedState& state, const SharedRun& run, int index);
void watch_events(const SharedState& state, const SharedRun& run);

// Sleeps until `until`, or until the run or the sampler ends; false then.
bool sleep_until(GpuSampler::State& state, const SamplerRun& run, SteadyTime until);

// Makes one NVML call and says so in `in_call` while it lasts.
nvmlReturn_t timed_call(InCall& in_call, const NvmlCall& call);

}  // namespace kdtree
