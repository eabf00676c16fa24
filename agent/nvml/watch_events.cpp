// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "agent/nvml/sampler_state.h"

namespace kdtree {
namespace {

constexpr std::chrono::milliseconds kLongestWait{500};

class EventWatcher {
 public:
  EventWatcher(GpuSampler::State& state, const SamplerRun& run)
      : state_(state), nvml_(run.session->nvml()), session_(run.number) {}
  ~EventWatcher() { drop_set(); }
  EventWatcher(const EventWatcher&) = delete;
  EventWatcher& operator=(const EventWatcher&) = delete;

  bool possible() const {
    return nvml_.event_set_create != nullptr && nvml_.event_set_free != nullptr &&
           nvml_.register_events != nullptr && nvml_.event_set_wait != nullptr;
  }

  // Waits for one event, in a set of all GPUs that answer. False: nothing could be waited for.
  bool turn() {
    const auto wanted = answering();
    if (!std::includes(tried_.begin(), tried_.end(), wanted.begin(), wanted.end()))
      make_set(wanted);
    if (set_ == nullptr || by_handle_.empty()) return false;
    nvmlEventData_t event{};
    // Well below hung_after, which is how a call that doesn't return is told from one that waits.
    const auto wait = std::min(kLongestWait, state_.options.hung_after / 4);
    const auto result = call(
        [&] { return nvml_.event_set_wait(set_, &event, static_cast<unsigned>(wait.count())); });
    if (result == NVML_SUCCESS && event.eventType == nvmlEventTypeXidCriticalError) count(event);
    if (result == NVML_SUCCESS || result == NVML_ERROR_TIMEOUT) return true;
    drop_set();
    return false;
  }

 private:
  nvmlReturn_t call(const NvmlCall& what) { return timed_call(state_.events_in_call, what); }

  // Index and key of each. A GPU that hangs would hold up the events of all others.
  std::set<std::pair<int, std::string>> answering() const {
    const std::lock_guard lock(state_.mutex);
    std::set<std::pair<int, std::string>> found;
    for (const auto& [key, slot] : state_.gpus)
      if (slot.session == session_ && slot.condition == GpuCondition::ok && !overdue(slot))
        found.emplace(slot.index, key);
    return found;
  }

  static bool overdue(const GpuSlot& slot) {
    const auto since = slot.in_call.since();
    return since && std::chrono::steady_clock::now() - *since > std::chrono::seconds(1);
  }

  void make_set(const std::set<std::pair<int, std::string>>& wanted) {
    drop_set();
    tried_ = wanted;
    if (call([&] { return nvml_.event_set_create(&set_); }) != NVML_SUCCESS) {
      set_ = nullptr;
      return;
    }
    std::set<int> registered;
    for (const auto& [index, key] : wanted) {
      nvmlDevice_t device = nullptr;
      const auto result = call([&, at = static_cast<unsigned>(index)] {
        const auto found = nvml_.device_by_index(at, &device);
        if (found != NVML_SUCCESS) return found;
        return nvml_.register_events(device, nvmlEventTypeXidCriticalError, set_);
      });
      if (result != NVML_SUCCESS) continue;
      by_handle_[device] = key;
      registered.insert(index);
    }
    const std::lock_guard lock(state_.mutex);
    state_.events_registered = std::move(registered);
  }

  void drop_set() {
    if (set_ != nullptr) nvml_.event_set_free(set_);
    set_ = nullptr;
    tried_.clear();
    by_handle_.clear();
    const std::lock_guard lock(state_.mutex);
    state_.events_registered.clear();
  }

  void count(const nvmlEventData_t& event) {
    const auto found = by_handle_.find(event.device);
    if (found == by_handle_.end()) return;
    const std::lock_guard lock(state_.mutex);
    XidCount& xid = state_.gpus[found->second].xids[event.eventData];
    ++xid.events;
    xid.last = std::chrono::system_clock::now();
  }

  GpuSampler::State& state_;
  const NvmlLibrary& nvml_;
  const std::uint64_t session_;
  nvmlEventSet_t set_ = nullptr;
  std::set<std::pair<int, std::string>> tried_;
  std::map<nvmlDevice_t, std::string> by_handle_;
};

}  // namespace

void watch_events(const SharedState& state, const SharedRun& run) {
  EventWatcher watcher(*state, *run);
  if (!watcher.possible()) return;
  while (!run->over) {
    if (watcher.turn()) continue;
    if (!sleep_until(*state, *run, std::chrono::steady_clock::now() + state->options.period)) break;
  }
}

}  // namespace kdtree
