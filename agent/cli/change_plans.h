// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "agent/cli/context.h"
#include "agent/plan/builder.h"
#include "agent/plan/plan.h"

// From what an operator asked for to a plan: shared by the verbs and by `kdtreectl plan`, which
// shows it. Each looks at the host and changes nothing. Errors: those of collect_facts,
// build_inputs and make_plan.
namespace kdtree {

struct DeployWish {
  std::string mode;  // "" = off for a new release, what it is in for the one in force
  bool accept_engine = false;
};

struct DeployPlan {
  BuildInputs inputs;
  Manifest release;       // as it will be, or as it is where it is built already
  bool is_built = false;  // a whole release of that id is there
  Plan plan;
};

Result<DeployPlan> plan_deploy(Context& context, const Config& config, const DeployWish& wish);
Result<Plan> plan_rollback(Context& context, const Config& config);
Result<Plan> plan_uninstall(Context& context, const Config& config, bool keep_releases);

// A switch to `mode` as far as the host allows it; whether `on` is permitted is the mode verb's
// business. `forced`: --force was given and needed.
Result<Plan> plan_mode(Context& context, const Config& config, Mode mode, bool cold,
                       bool forced = false);

// Do all expected ranks of `release` follow the control file now?
Result<bool> all_armed(Context& context, const Config& config, const std::string& release);

}  // namespace kdtree
