// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "agent/cli/deployed.h"
#include "agent/cli/engine_python.h"
#include "agent/cli/verbs.h"

namespace kdtree {
namespace {

struct Options {
  bool json = false;
  std::string device;
  long long timeout_s = 600;
};

Result<ExitCode> run_selftest_verb(Context& context, const Options& options) {
  KDTREE_TRY_ASSIGN(auto config, context.config());
  KDTREE_TRY_ASSIGN(auto state, need_deployed(context));
  KDTREE_TRY_ASSIGN(auto services, context.services());
  KDTREE_TRY_ASSIGN(auto unit, services->unit(config->engine.unit));
  const auto release = release_folder(context.root, state.current.release);
  KDTREE_TRY_ASSIGN(auto answer, run_selftest(*config, unit, release, options.device,
                                              std::chrono::seconds(options.timeout_s)));
  if (options.json) {
    context.out.json(nlohmann::ordered_json::parse(answer.output));
  } else {
    std::vector<std::pair<std::string, std::string>> pairs = {
        {"selftest", context.out.paint(answer.passed ? Tone::good : Tone::bad,
                                       answer.passed ? "passed" : "FAILED")},
        {"release", state.current.release},
        {"device", answer.device == "cpu" ? "cpu (CPU implementation)" : answer.device},
        {"cases", std::to_string(answer.cases)},
        {"torch", answer.torch},
        {"worst", answer.worst.empty() ? "-" : answer.worst}};
    for (const auto& type : answer.proven_kv) pairs.emplace_back(type + " KV", "passed");
    for (const auto& [type, why] : answer.unproven_kv)
      pairs.emplace_back(type + " KV", "not proven: " + why);
    context.out.pairs(pairs);
  }
  return answer.passed ? ExitCode::done : ExitCode::bad_answer;
}

}  // namespace

void setup_selftest(CLI::App& app, Context& context) {
  auto options = std::make_shared<Options>();
  auto& verb = add_verb(app, context, "selftest",
                        "Test the deployed kernel against fp64, with the engine's Python",
                        [&context, options] { return run_selftest_verb(context, *options); });
  verb.add_flag("--json", options->json, "Print the answer as JSON");
  verb.add_option("--device", options->device, "cuda or cpu (default: cuda where there is a GPU)")
      ->check(one_of({"cuda", "cpu"}))
      ->type_name("DEVICE");
  verb.add_option("--timeout", options->timeout_s, "Seconds it may take")
      ->check(quiet(CLI::PositiveNumber))
      ->type_name("SECONDS");
}

}  // namespace kdtree
