// SPDX-License-Identifier: Apache-2.0
#include "agent/gate/verdict.h"

#include <array>
#include <memory>

#include "agent/cli/deployed.h"
#include "agent/cli/facts_json.h"
#include "agent/cli/verbs.h"

namespace kdtree {
namespace {

std::string number(const std::optional<double>& value) {
  if (!value) return "-";
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.3g", *value);
  return text.data();
}

std::string batches_text(const std::map<std::uint32_t, std::uint64_t>& batches) {
  std::string text;
  for (const auto& [batch, compares] : batches)
    text += (text.empty() ? "" : ", ") + std::to_string(batch) + ": " + std::to_string(compares);
  return text.empty() ? "-" : text;
}

void print(Output& out, const Verdict& verdict, const ValidateConfig& limits) {
  const Tone tone = verdict.kind == VerdictKind::clean          ? Tone::good
                    : verdict.kind == VerdictKind::insufficient ? Tone::warning
                                                                : Tone::bad;
  out.pairs(
      {{"verdict", out.paint(tone, verdict_name(verdict.kind))},
       {"release", verdict.release_id},
       {"engine", verdict.engine_version.empty() ? "-" : verdict.engine_version},
       {"compares", std::to_string(verdict.compares) + ", fewest on a rank " +
                        std::to_string(verdict.fewest_compares) + " (needed " +
                        std::to_string(limits.min_compares) + ")"},
       {"over tolerance", std::to_string(verdict.mismatches)},
       {"largest difference", number(verdict.max_ulp) + " ULP (limit " + number(limits.max_ulp) +
                                  "), " + number(verdict.max_abs) + " absolute"},
       {"mean difference", number(verdict.mean_ulp) + " ULP, of a request at most " +
                               number(verdict.max_mean_ulp) + " (limit " + number(limits.mean_ulp) +
                               ")"},
       {"longest prefix",
        verdict.compares ? std::to_string(verdict.longest_prefix) + " tokens" : "-"},
       {"batch sizes", batches_text(verdict.batches)}});
  std::vector<std::vector<std::string>> rows;
  for (const auto& rank : verdict.ranks)
    rows.push_back({std::to_string(rank.rank), std::string(verdict_name(rank.kind)),
                    std::to_string(rank.compares), std::to_string(rank.mismatches),
                    number(rank.max_ulp), number(rank.max_mean_ulp), rank.reason});
  out.line("");
  out.table({"rank", "verdict", "compares", "over", "max ULP", "max mean", "why"}, rows);
}

Result<ExitCode> run_verdict(Context& context, bool json) {
  KDTREE_TRY_ASSIGN(auto config, context.config());
  KDTREE_TRY_ASSIGN(auto state, need_deployed(context));
  KDTREE_TRY_ASSIGN(auto ranks, read_ranks(context.root, config->engine.ranks));
  const auto verdict = judge_ranks(ranks, state.current.release, config->validate);
  if (json)
    context.out.json(to_json(verdict, config->validate));
  else
    print(context.out, verdict, config->validate);
  return verdict.kind == VerdictKind::clean ? ExitCode::done : ExitCode::bad_answer;
}

}  // namespace

void setup_verdict(CLI::App& app, Context& context) {
  auto json = std::make_shared<bool>(false);
  auto& verb =
      add_verb(app, context, "verdict", "Show what validate has compared, on each rank and in all",
               [&context, json] { return run_verdict(context, *json); });
  verb.add_flag("--json", *json, "Print it as JSON");
  verb.footer(
      "clean: every rank is there, has compared enough, and no difference is over the limits of "
      "the "
      "configuration. insufficient: nothing bad, and not enough seen. Exit status 0 only when "
      "clean.");
}

}  // namespace kdtree
