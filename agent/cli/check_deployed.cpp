// SPDX-License-Identifier: Apache-2.0
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/cli/checks.h"
#include "agent/cli/deployed.h"
#include "agent/cli/drift.h"
#include "agent/metrics/listen.h"
#include "agent/metrics/web_config.h"
#include "agent/plan/plan.h"
#include "agent/plan/plan_checks.h"
#include "agent/plan/transaction.h"

namespace kdtree {
namespace {

constexpr const char* kAgentUnit = "kdtree-agent.service";

std::string user_name(uid_t uid) {
  const passwd* entry = getpwuid(uid);
  return entry ? entry->pw_name : std::to_string(uid);
}

void check_stats_folder(Context& context, const Facts& facts, CheckList& list) {
  const std::string name = "stats folder";
  struct stat about {};
  if (lstat(context.root(paths::kStats).c_str(), &about) != 0 || !S_ISDIR(about.st_mode)) {
    if (facts.state.current.none() || facts.state.current.cold || !facts.unit.state.is_active())
      list.ok(name, std::string(paths::kStats) +
                        " is not there; systemd makes it when an armed engine starts");
    else
      list.bad(name, std::string(paths::kStats) + " is missing",
               "systemctl restart " + facts.unit.state.name);
    return;
  }
  const std::string what = std::string(paths::kStats) + " belongs to " + user_name(about.st_uid);
  if (about.st_mode & S_IWOTH)
    list.bad(name, what + " and everybody can write to it",
             "systemctl restart " + facts.unit.state.name + " makes it anew");
  else
    list.ok(name, what);
}

void check_release(Context& context, const Config& config, const Facts& facts, CheckList& list) {
  const auto& current = facts.state.current;
  if (current.none()) {
    list.ok("release", "none is deployed yet");
    return;
  }
  const auto folder = release_folder(context.root, current.release);
  auto manifest = read_manifest(folder);
  if (!manifest) {
    list.bad("release", manifest.error());
    return;
  }
  if (auto whole = verify_release(folder, *manifest); !whole)
    list.bad("release", whole.error());
  else
    list.ok("release", current.release + ", all " + std::to_string(manifest->files.size()) +
                           " files as they were made");
  const bool wants_cpu = config.kernel.device == KernelDevice::cpu;
  if (wants_cpu != (manifest->selftest_device == "cpu"))
    list.warn("selftest",
              "it ran on " + manifest->selftest_device + ", kernel.device is " +
                  std::string(to_string(config.kernel.device)),
              "kdtreectl deploy; until then mode on is refused");
  for (const auto& difference : not_made_for(*manifest, ground_of(facts)))
    list.bad("release", difference + "; the patch stands aside from the engine's next start on",
             kUpgrade);
}

void check_drift(Context& context, const Config& config, const Facts& facts, CheckList& list) {
  DriftFacts drift;
  drift.state = facts.state;
  drift.release = facts.release;
  drift.control = facts.control;
  drift.unit = facts.unit.state;
  auto ranks = read_ranks(context.root, config.engine.ranks);
  if (!ranks) {
    list.bad("ranks", ranks.error());
    return;
  }
  drift.ranks = std::move(*ranks);
  if (auto cut_off = recovery_needed(context.root))
    drift.cut_off = *cut_off;
  else
    list.skip("journal", cut_off.error().what);
  drift.live = context.root.is_host() && geteuid() == 0;
  if (auto same = check_same_unit(facts.state, config); !same)
    list.bad("engine unit", same.error());
  auto lines = find_drift(context.root, drift);
  for (const auto& line : lines) list.bad(line.kind, line.text, line.next);
  if (!lines.empty() || facts.state.current.none()) return;
  list.ok("drift", "nothing differs from what kdtreectl left");
  if (!facts.state.current.cold)
    list.ok("ranks", std::to_string(drift.ranks.armed()) + " of " +
                         std::to_string(config.engine.ranks) + " armed");
}

void check_address(const AgentConfig& agent, CheckList& list) {
  if (is_loopback_address(agent.listen)) return;
  const std::string name = "agent address";
  const std::string what = "agent.listen " + agent.listen + " is beyond loopback";
  const auto web = load_web_config(agent.web_config);
  if (!web)
    list.warn(name, what + ", and agent.web_config can't be used: " + web.error().what,
              "kdtree-agent does not serve before that is right");
  else if (!web->is_closed())
    list.warn(name, what + ", without TLS and passwords: kdtree-agent refuses to serve there",
              "name a web configuration as agent.web_config, or listen on 127.0.0.1");
  else
    list.ok(name, what + ", with TLS and passwords or certificates");
}

void check_agent(Context& context, const Facts& facts, CheckList& list) {
  auto services = context.services();
  if (!services) return;
  auto agent = (*services)->unit(kAgentUnit);
  if (!agent)
    list.bad("agent", agent.error());
  else if (!agent->exists())
    list.warn("agent", std::string(kAgentUnit) + " is not installed: no metrics",
              "install the kdtree package again");
  else if (agent->is_active())
    list.ok("agent", std::string(kAgentUnit) + " is active");
  else if (facts.state.current.none())
    list.ok("agent", std::string(kAgentUnit) + " is " + agent->active_state + "; deploy starts it");
  else
    list.warn("agent", std::string(kAgentUnit) + " is " + agent->active_state,
              "systemctl start " + std::string(kAgentUnit));
}

}  // namespace

void check_deployed(Context& context, const Config& config, const Facts& facts, CheckList& list) {
  check_release(context, config, facts, list);
  check_drift(context, config, facts, list);
  check_stats_folder(context, facts, list);
  check_agent(context, facts, list);
  check_address(config.agent, list);
}

}  // namespace kdtree
