// SPDX-License-Identifier: Apache-2.0
#include "agent/nvml/gpu_sampler.h"

#include <algorithm>
#include <thread>
#include <tuple>

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

bool is_overdue(const InCall& in_call, const GpuSamplerOptions& options) {
  const auto since = in_call.since();
  return since && steady_clock::now() - *since > options.hung_after;
}

// Says when NVML itself needs a new beginning, which a call that hangs forbids: once no GPU has
// been well for as long as `retry`; and now and then while one is lost, since only a new nvmlInit
// shows a GPU that came back, or a driver that was loaded anew.
class RestartJudge {
 public:
  explicit RestartJudge(const GpuSamplerOptions& options) : patience_(options.look_again) {}

  bool should_restart(GpuSampler::State& state) {
    const std::lock_guard lock(state.mutex);
    bool any_well = false;
    bool all_well = true;
    for (const auto& [key, slot] : state.gpus) {
      if (slot.in_call.since() && slot.session == state.session) any_well = true;
      const bool well =
          slot.session == state.session && (!slot.condition || slot.condition == GpuCondition::ok);
      any_well = any_well || well;
      all_well = all_well && well;
    }
    const auto now = steady_clock::now();
    if (any_well) any_well_at_ = now;
    if (all_well) {
      patience_ = state.options.look_again;
      all_well_at_ = now;
    }
    if (now - any_well_at_ > state.options.retry) return true;
    if (now - all_well_at_ <= patience_ || in_a_call(state, now)) return false;
    patience_ = std::min(2 * patience_, 16 * state.options.look_again);
    all_well_at_ = now;
    return true;
  }

  void begins() { any_well_at_ = steady_clock::now(); }

 private:
  // For so long that the call may never return, and the session never end.
  static bool in_a_call(const GpuSampler::State& state, SteadyTime now) {
    return std::any_of(state.gpus.begin(), state.gpus.end(), [&](const auto& entry) {
      const auto since = entry.second.in_call.since();
      return since && now - *since > state.options.hung_after / 2;
    });
  }

  SteadyTime any_well_at_ = steady_clock::now();
  SteadyTime all_well_at_ = steady_clock::now();
  std::chrono::milliseconds patience_;
};

void run_session(const SharedState& state, std::shared_ptr<const NvmlSession> session,
                 std::uint64_t number, RestartJudge& judge) {
  auto run = std::make_shared<SamplerRun>();
  run->session = std::move(session);
  run->number = number;
  for (unsigned i = 0; i < run->session->gpus(); ++i)
    start_thread(state, [state, run, i] { watch_gpu(state, run, static_cast<int>(i)); });
  start_thread(state, [state, run] { watch_events(state, run); });

  judge.begins();
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
  RestartJudge judge(state->options);
  while (true) {
    state->supervisor_in_call.begin();
    auto session = NvmlSession::begin(state->options.nvml_path);
    std::uint64_t number = 0;
    {
      const std::lock_guard lock(state->mutex);
      state->supervisor_in_call.end();
      state->failure = session ? std::nullopt : std::optional(session.error());
      state->visible = session ? (*session)->gpus() : 0;
      state->driver = session ? (*session)->driver() : "";
      state->session_began = steady_clock::now();
      number = ++state->session;
      if (state->stop) return;
    }
    if (session) {
      run_session(state, std::move(*session), number, judge);
      if (!sleep_until(*state, always, steady_clock::now() + state->options.period)) return;
    } else if (!sleep_until(*state, always, steady_clock::now() + state->options.retry)) {
      return;
    }
  }
}

// A GPU that this session doesn't list, although it has had time to.
bool is_gone(const GpuSlot& slot, const GpuSampler::State& state, SteadyTime now) {
  return !state.failure && slot.session != state.session &&
         now - state.session_began > state.options.hung_after;
}

GpuSnapshot snapshot_of(const GpuSlot& slot, const GpuSampler::State& state, SteadyTime now) {
  const GpuSamplerOptions& options = state.options;
  GpuSnapshot gpu;
  gpu.index = slot.index;
  gpu.uuid = slot.uuid;
  gpu.name = slot.name;
  gpu.pci_bus_id = slot.pci_bus_id;
  gpu.condition = slot.condition;
  gpu.detail = slot.detail;
  if (is_overdue(slot.in_call, options)) {
    gpu.condition = GpuCondition::hung;
    gpu.detail = "a call does not return";
  } else if (is_gone(slot, state, now)) {
    gpu.condition = GpuCondition::lost;
    gpu.detail = "NVML no longer lists it";
  }
  if (slot.sampled_at) {
    gpu.sample_age = now - *slot.sampled_at;
    gpu.sample_took = slot.sample_took;
  }
  if (state.failure && gpu.condition == GpuCondition::ok) gpu.condition.reset();  // nobody knows
  const bool fine = gpu.condition == GpuCondition::ok;
  if (fine && slot.sampled_at && now - *slot.sampled_at <= options.values_valid) {
    gpu.values = slot.values;
    gpu.values->utilization_max.reset();
    for (const auto& [at, high] : slot.highs)
      if (now - at <= kMaxSpan)
        gpu.values->utilization_max = std::max(gpu.values->utilization_max.value_or(0), high);
  }
  if (fine && slot.slow_at && now - *slot.slow_at <= options.slow_period + options.values_valid) {
    gpu.slow = slot.slow;
    gpu.slow_age = now - *slot.slow_at;
  }
  gpu.busy = slot.busy;
  gpu.observed = slot.observed;
  gpu.spread = slot.spread;
  gpu.clock_event_time = slot.clock_event_time;
  gpu.xids = slot.xids;
  return gpu;
}

}  // namespace

bool sleep_until(GpuSampler::State& state, const SamplerRun& run, SteadyTime until) {
  std::unique_lock lock(state.mutex);
  state.changed.wait_until(lock, until, [&] { return state.stop || run.over.load(); });
  return !state.stop && !run.over;
}

nvmlReturn_t timed_call(InCall& in_call, const NvmlCall& call) {
  in_call.begin();
  const nvmlReturn_t result = call();
  in_call.end();
  return result;
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
  if (is_overdue(state.supervisor_in_call, state.options))
    snapshot.failure = NvmlError{NvmlFailure::hung, "nvmlInit does not return"};
  snapshot.driver = state.driver;
  snapshot.visible = state.visible;
  snapshot.session = state.session;
  snapshot.events = !snapshot.failure && state.events_registered.size() == state.visible &&
                    !is_overdue(state.events_in_call, state.options);
  for (const auto& [key, slot] : state.gpus) snapshot.gpus.push_back(snapshot_of(slot, state, now));
  std::sort(snapshot.gpus.begin(), snapshot.gpus.end(), [](const auto& a, const auto& b) {
    return std::tie(a.index, a.uuid) < std::tie(b.index, b.uuid);
  });
  return snapshot;
}

}  // namespace kdtree
