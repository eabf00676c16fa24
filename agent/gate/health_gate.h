// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "agent/config/config.h"
#include "agent/nvml/list_gpus.h"
#include "agent/systemd/service_manager.h"
#include "agent/util/mode.h"
#include "agent/util/result.h"
#include "agent/util/root.h"

namespace kdtree {

// What has to be true before a change counts as good.
struct GateWish {
  std::string unit;
  // The InvocationID from before the restart: the gate opens only under another one. "" = no
  // restart is part of this change; then the unit must stay under the one it has.
  std::string previous_invocation;
  std::string health_url;
  int ranks =
      0;  // expected ranks; 0 = kdtree is absent or being removed: the unit and its health alone
  std::string release_id;  // what every rank must report; unused with ranks 0
  Mode mode = Mode::off;   // what every rank must report; unused with ranks 0
  std::uint64_t generation =
      0;  // control generation that every rank must have reached; 0 = none written
  std::optional<GoldenPrompt> golden;  // unused with ranks 0, as the next
  std::uint64_t gpu_free_bytes = 0;    // 0 = GPUs are not looked at
  std::function<Result<GpuList>()> gpus = [] { return list_gpus(); };
  std::chrono::milliseconds deadline{std::chrono::minutes(30)};
  std::chrono::milliseconds stable{
      std::chrono::seconds(10)};  // how long all of it must hold without a break
};

struct GateProgress {
  std::string
      stage;  // "starting", "loading", "graph capture", "warm-up", "health", "ranks 5/8", "stable"
  std::string detail;  // what is still missing, one line; "" = nothing
  std::chrono::milliseconds elapsed{0};
  std::chrono::milliseconds remaining{0};
};
using GateProgressFn = std::function<void(const GateProgress&)>;

struct GateReport {
  UnitState unit;  // as it was when the gate opened
  std::chrono::milliseconds elapsed{0};
  std::vector<std::string> notes;  // checks that could not be made here, each with the reason
};

// Waits until everything in `wish` holds and goes on holding for `stable`, or says why not: a unit
// that ended is an error at once (with the last lines of its journal), one that isn't healthy by
// the deadline when that has passed. The error's code is ExitCode::rolled_back; the caller undoes.
Result<GateReport> wait_until_healthy(const Root& root, ServiceManager& services,
                                      const GateWish& wish, const GateProgressFn& progress = {});

}  // namespace kdtree
