// SPDX-License-Identifier: Apache-2.0
#include "agent/nvml/gpu_sampler.h"

#include <algorithm>
#include <thread>

#include "agent/nvml/sampler_state.h"

namespace kdtree {
namespace {

using std::chrono::steady_clock;

void start_thread(const SharedState& state, std::function<void()> work) {
  {
    const std::lock_guard lock(state->mutex);
    ++state->threads;
  }
  std::thread([state, work = std::move(work)]() mutable {
    work();
    work = nullptr;  // lets the session go before the thread is counted as gone
    const std::lock_guard lock(state->mutex);
    --state->threads;
    state->changed.notify_all();
  }).detach();
}

bool is_overdue(const std::optional<SteadyTime>& since, const GpuSamplerOptions& options) {
  return since && steady_clock::now() - *since > options.hung_after;
}

// True once no GPU has been well for as long as `retry` and none hangs: then NVML itself may need a
// new beginning.
class RestartJudge {
 public:
  bool should_restart(GpuSampler::State& state) {
    const std::lock_guard lock(state.mutex);
    const auto well = [&](const auto& entry) {
      return !entry.second.condition || entry.second.condition == GpuCondition::ok ||
             entry.second.in_call_since;
    };
    const auto now = steady_clock::now();
    if (std::any_of(state.gpus.begin(), state.gpus.end(), well)) well_at_ = now;
    return now - well_at_ > state.options.retry;
  }

 private:
  SteadyTime well_at_ = steady_clock::now();
};

void run_session(const SharedState& state, std::shared_ptr<const NvmlSession> session) {
  auto run = std::make_shared<SamplerRun>();
  run->session = std::move(session);
  for (unsigned i = 0; i < run->session->gpus(); ++i)
    start_thread(state, [state, run, i] { watch_gpu(state, run, static_cast<int>(i)); });
  start_thread(state, [state, run] { watch_events(state, run); });

  RestartJudge judge;
  while (sleep_until(*state, *run, steady_clock::now() + state->options.period))
    if (judge.should_restart(*state)) run->over = true;
  run->over = true;
  std::unique_lock lock(state->mutex);
  state->changed.notify_all();
  while (!state->stop && run.use_count() > 1)
    state->changed.wait_for(lock, std::chrono::milliseconds(50));
}

void supervise(const SharedState& state) {
  const SamplerRun always;
  do {
    {
      const std::lock_guard lock(state->mutex);
      state->supervisor_in_call_since = steady_clock::now();
    }
    auto session = NvmlSession::begin(state->options.nvml_path);
    {
      const std::lock_guard lock(state->mutex);
      state->supervisor_in_call_since.reset();
      state->failure = session ? std::nullopt : std::optional(session.error());
      state->visible = session ? (*session)->gpus() : 0;
      state->driver = session ? (*session)->driver() : "";
      if (state->stop) return;
    }
    if (session) run_session(state, std::move(*session));
  } while (sleep_until(*state, always, steady_clock::now() + state->options.retry));
}

GpuSnapshot snapshot_of(int index, const GpuSlot& slot, const GpuSamplerOptions& options,
                        SteadyTime now) {
  GpuSnapshot gpu;
  gpu.index = index;
  gpu.uuid = slot.uuid;
  gpu.name = slot.name;
  gpu.pci_bus_id = slot.pci_bus_id;
  gpu.condition = slot.condition;
  gpu.detail = slot.detail;
  if (is_overdue(slot.in_call_since, options)) {
    gpu.condition = GpuCondition::hung;
    gpu.detail = "a call does not return";
  }
  if (slot.sampled_at) gpu.sample_age = now - *slot.sampled_at;
  if (gpu.condition == GpuCondition::ok && slot.sampled_at &&
      now - *slot.sampled_at <= options.values_valid) {
    gpu.values = slot.values;
    if (!slot.pcie_at || now - *slot.pcie_at > options.values_valid) {
      gpu.values->pcie_receive_bytes_per_second.reset();
      gpu.values->pcie_transmit_bytes_per_second.reset();
    }
  }
  gpu.busy = slot.busy;
  gpu.observed = slot.observed;
  gpu.xids = slot.xids;
  return gpu;
}

}  // namespace

bool sleep_until(GpuSampler::State& state, const SamplerRun& run, SteadyTime until) {
  std::unique_lock lock(state.mutex);
  state.changed.wait_until(lock, until, [&] { return state.stop || run.over.load(); });
  return !state.stop && !run.over;
}

nvmlReturn_t timed_call(GpuSampler::State& state, std::optional<SteadyTime>& since,
                        const std::function<nvmlReturn_t()>& call) {
  {
    const std::lock_guard lock(state.mutex);
    since = steady_clock::now();
  }
  const nvmlReturn_t result = call();
  const std::lock_guard lock(state.mutex);
  since.reset();
  return result;
}

std::string_view gpu_condition_name(GpuCondition condition) {
  switch (condition) {
    case GpuCondition::ok:
      return "ok";
    case GpuCondition::lost:
      return "lost";
    case GpuCondition::hung:
      return "hung";
    case GpuCondition::no_permission:
      return "no_permission";
    case GpuCondition::error:
      return "error";
  }
  return "error";
}

GpuSampler::GpuSampler(GpuSamplerOptions options)
    : state_(std::make_shared<State>(std::move(options))) {
  start_thread(state_, [state = state_] { supervise(state); });
}

GpuSampler::~GpuSampler() {
  std::unique_lock lock(state_->mutex);
  state_->stop = true;
  state_->changed.notify_all();
  state_->changed.wait_for(lock, std::chrono::seconds(1), [&] { return state_->threads == 0; });
}

NvmlSnapshot GpuSampler::snapshot() const {
  const State& state = *state_;
  const std::lock_guard lock(state.mutex);
  const auto now = steady_clock::now();
  NvmlSnapshot snapshot;
  snapshot.failure = state.failure;
  if (is_overdue(state.supervisor_in_call_since, state.options))
    snapshot.failure = NvmlError{NvmlFailure::hung, "nvmlInit does not return"};
  snapshot.driver = state.driver;
  snapshot.visible = state.visible;
  snapshot.events = !snapshot.failure && state.events_registered.size() == state.visible &&
                    !is_overdue(state.events_in_call_since, state.options);
  for (const auto& [index, slot] : state.gpus)
    snapshot.gpus.push_back(snapshot_of(index, slot, state.options, now));
  return snapshot;
}

}  // namespace kdtree
