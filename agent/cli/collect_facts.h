// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/cli/context.h"
#include "agent/plan/facts.h"
#include "agent/util/run_as.h"

namespace kdtree {

// How much is looked at. Plans between modes don't need the slow part (the engine's probe, GPUs,
// nvcc, source digest).
enum class FactsDepth {
  switching,
  building,
  removing,  // as switching; a unit that is gone is no error
};

// Looks at the host and fills in what make_plan needs. Changes nothing.
// Errors: refused: systemd can't be reached; the unit doesn't exist although the configuration
// doesn't make it; a file that systemd applies to the unit can't be read; state.json is damaged.
// What is merely missing (no GPU, no nvcc, a probe that failed) is said inside the facts.
Result<Facts> collect_facts(Context& context, const Config& config, FactsDepth depth);

// What a release depends on: the engine's probe, GPUs and driver, which `switching` leaves out.
void look_at_ground(Context& context, const Config& config, Facts& facts);

// Where nvcc was looked for, and the first that answers and is new enough; the first that answers
// where none is, or where the configuration names it. The order: kernel.cuda_home, CUDA_HOME, PATH,
// /usr/local/cuda, the engine's site-packages (`site`, "" = unknown). `user`: who asks each for its
// version.
struct NvccSearch {
  std::optional<NvccFacts> found;
  std::vector<std::string> searched;
};
NvccSearch find_nvcc(const Config& config, const std::string& site,
                     const std::optional<RunAs>& user);

}  // namespace kdtree
