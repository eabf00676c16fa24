// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include "agent/cli/checks.h"
#include "agent/cli/hand_made.h"
#include "agent/gate/socket_owner.h"
#include "agent/util/http_get.h"

namespace kdtree {
namespace {

constexpr std::chrono::milliseconds kHealthDeadline{5'000};

void check_probe(const Config& config, const Facts& facts, CheckList& list) {
  if (!facts.user_error.empty()) {
    list.bad("engine user", facts.user_error,
             config.engine.whole_unit() ? "make that user, or name another as engine.user"
                                        : "make that user, or name another in the unit's User=");
    return;
  }
  if (!facts.engine) {
    list.bad("engine", facts.engine_error, "engine.python must be the Python that runs the engine");
    return;
  }
  const auto& engine = *facts.engine;
  if (engine.name.empty()) {
    list.bad("engine", config.engine.python + " has no sglang package",
             "engine.python must be the Python that runs the engine");
    return;
  }
  const std::string what = engine.name + " " + engine.version + ", torch " +
                           (engine.torch.empty() ? "none" : engine.torch) + ", Python " +
                           engine.python;
  std::string difference = engine.differences.empty() ? "" : ": " + engine.differences.front();
  if (engine.differences.size() > 1)
    difference += " (and " + std::to_string(engine.differences.size() - 1) + " more)";
  if (engine.known)
    list.ok("engine", what);
  else if (!engine.binds)
    list.bad("engine", what + " does not fit the patch" + difference,
             "kdtree needs an engine with these functions");
  else if (facts.state.accepted_engines.contains(engine.fingerprint))
    list.ok("engine", what + ", not one that kdtree was tested with, accepted on this host");
  else
    list.warn("engine", what + " is not one that kdtree was tested with" + difference,
              "kdtreectl deploy --accept-engine accepts it");
  if (engine.torch.empty()) list.bad("torch", "the engine's Python has no torch", "");
}

void check_hooks(const Root& root, const Facts& facts, CheckList& list) {
  for (const auto& each : facts.hand_made) {
    if (each.doubles)
      list.bad("start-up hooks", each.what, each.next);
    else
      list.warn("start-up hooks", each.what, each.next);
  }
  const auto hooks =
      other_hooks(root, facts.unit.state, facts.engine ? facts.engine->site : std::string());
  for (const auto& hook : hooks)
    list.warn("start-up hooks", hook + " runs in the engine too",
              "kdtree calls it; see that it does not patch attention");
  if (hooks.empty() && facts.hand_made.empty())
    list.ok("start-up hooks", "no other sitecustomize.py, no KDTREE_ variables set by hand");
}

void check_health(Context& context, const Config& config, const Facts& facts, CheckList& list) {
  const auto& url = config.engine.health_url;
  if (!facts.unit.state.is_active()) {
    list.skip("health", "the engine is not running");
    return;
  }
  auto answer = http_get(url, kHealthDeadline);
  if (!answer || answer->status != 200) {
    list.bad("health",
             answer ? url + " answers " + std::to_string(answer->status) : answer.error().what,
             "engine.health_url must be the engine's own");
    return;
  }
  auto port = loopback_port(url);
  if (!port) {
    list.warn("health", url + " is not on the loopback: it can't be told who answers",
              "use the engine's own address, 127.0.0.1");
    return;
  }
  auto owner = find_listener(context.root, *port, facts.unit.state.control_group);
  if (owner.listener == Listener::foreign)
    list.bad("health",
             url + " is answered by " + owner.detail + ", not by " + facts.unit.state.name,
             "engine.health_url must be the engine's own");
  else if (owner.listener == Listener::ours)
    list.ok("health", url + " answers 200, from the unit's own processes");
  else
    list.ok("health",
            url + " answers 200" + (owner.detail.empty() ? "" : " (" + owner.detail + ")"));
}

}  // namespace

void check_engine(Context& context, const Config& config, const Facts& facts, CheckList& list) {
  if (access(context.root(config.engine.python).c_str(), X_OK) != 0)
    list.bad("engine", config.engine.python + " is not a program",
             "engine.python must be the Python that runs the engine");
  else
    check_probe(config, facts, list);
  check_hooks(context.root, facts, list);
  check_health(context, config, facts, list);
}

}  // namespace kdtree
