// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <nlohmann/json.hpp>

#include "agent/cli/bench_report.h"
#include "agent/cli/deployed.h"
#include "agent/cli/engine_python.h"
#include "agent/cli/verbs.h"
#include "agent/gate/ranks.h"
#include "agent/util/clock.h"
#include "agent/util/file.h"
#include "agent/util/interrupt.h"

namespace kdtree {
namespace {

struct Options {
  std::string engine;  // URL; "" = the release's kernel alone
  std::string contexts = "1k,4k,16k,65k";
  std::string against;
  std::string sweep;
  std::string kv = "bf16";
  long long steps = 30;
  long long timeout_s = 600;
  bool json = false;
};

// What the ranks' stats files say about what is measured; all unknown where nothing is deployed.
void describe_engine(Context& context, BenchReport& report) {
  report.mode = "unpatched";
  const auto config = context.config();
  if (!config) return;
  const auto ranks = read_ranks(context.root, (*config)->engine.ranks);
  if (!ranks) return;
  for (const auto& view : ranks->ranks) {
    if (!view.stats) continue;
    const RankStats& rank = *view.stats;
    if (!rank.device_uuid.empty()) report.gpus.push_back(rank.device_uuid);
    const std::string mode = rank.patch_state == PatchState::active
                                 ? std::string(to_string(rank.mode))
                                 : std::string(patch_state_name(rank.patch_state));
    report.mode = report.mode == "unpatched" || report.mode == mode ? mode : "mixed";
    report.release = rank.release_id;
    report.engine_version = rank.engine_version;
  }
}

Result<std::optional<BenchReport>> read_earlier(const std::string& path) {
  if (path.empty()) return std::optional<BenchReport>{};
  KDTREE_TRY_ASSIGN(const auto text, read_file(path));
  KDTREE_TRY_ASSIGN(auto report, parse_report(text, path));
  return std::optional<BenchReport>(std::move(report));
}

std::string shape_text(const BenchShape& shape) {
  return "context " + std::to_string(shape.context) +
         (shape.batch > 1 ? ", batch " + std::to_string(shape.batch) : "");
}

Result<ExitCode> bench_engine(Context& context, const Options& options) {
  KDTREE_TRY_ASSIGN(const auto shapes, parse_shapes(options.contexts));
  KDTREE_TRY_ASSIGN(const auto earlier, read_earlier(options.against));
  std::string url = options.engine;
  while (url.ends_with('/')) url.pop_back();
  BenchReport report{.engine = url,
                     .date = utc_now(),
                     .mode = {},
                     .release = {},
                     .engine_version = {},
                     .gpus = {},
                     .points = {}};
  describe_engine(context, report);
  if (earlier) KDTREE_TRY(make_table(report, &*earlier));
  const InterruptGuard guard;
  const BenchLimits limits{.steps = static_cast<long>(options.steps),
                           .longest = std::chrono::seconds(30),
                           .deadline = std::chrono::seconds(options.timeout_s)};
  Result<ExitCode> outcome = ExitCode::done;
  for (const auto& shape : shapes) {
    const std::string stage = shape_text(shape);
    auto point = measure_shape(url, shape, limits, [&](std::string_view text) {
      context.out.progress(stage, stage + ": " + std::string(text));
    });
    if (!point) {
      outcome = prefixed(stage, point.error());
      break;
    }
    report.points.push_back(*point);
  }
  context.out.end_progress();
  if (report.points.empty()) return outcome;
  if (options.json) {
    context.out.json(to_json(report));
    return outcome;
  }
  KDTREE_TRY_ASSIGN(const auto table, make_table(report, earlier ? &*earlier : nullptr));
  context.out.table(table.header, table.rows);
  return outcome;
}

Result<ExitCode> bench_kernel(Context& context, const Options& options) {
  KDTREE_TRY_ASSIGN(const auto* config, context.config());
  KDTREE_TRY_ASSIGN(const auto state, need_deployed(context));
  KDTREE_TRY_ASSIGN(auto* services, context.services());
  KDTREE_TRY_ASSIGN(const auto unit, services->unit(config->engine.unit));
  const auto release = release_folder(context.root, state.current.release);
  std::vector<std::string> args = {"-m", "kdtree_kernel.bench", "--lib",
                                   (release / "lib/libkdtree_torch.so").string()};
  if (options.json) args.emplace_back("--json");
  if (options.kv != "bf16") args.insert(args.end(), {"--kv", options.kv});
  if (!options.sweep.empty()) args.insert(args.end(), {"--sweep", options.sweep});
  KDTREE_TRY_ASSIGN(auto command,
                    engine_command(*config, unit, release / "python", std::move(args)));
  command.deadline = std::chrono::seconds(options.timeout_s);
  command.on_line = [&](std::string_view line) { context.out.progress("kernel bench", line); };
  KDTREE_TRY_ASSIGN(const auto done, run_command(command));
  context.out.end_progress();
  if (!done.ok())
    return fail(ExitCode::refused, "kernel bench: " + done.last_line(), "kdtreectl selftest");
  std::string_view text = done.output;
  while (text.ends_with('\n')) text.remove_suffix(1);
  context.out.line(text);
  return ExitCode::done;
}

}  // namespace

void setup_bench(CLI::App& app, Context& context) {
  auto options = std::make_shared<Options>();
  auto& verb = add_verb(app, context, "bench",
                        "Time the deployed kernel, or the verify steps of a running engine",
                        [&context, options] {
                          return options->engine.empty() ? bench_kernel(context, *options)
                                                         : bench_engine(context, *options);
                        });
  auto* engine = verb.add_option("--engine", options->engine,
                                 "Send greedy requests of random tokens to this SGLang server and "
                                 "time its verify steps")
                     ->type_name("URL");
  verb.add_option("--sweep", options->sweep,
                  "nsplit: time the kernel at every useful KDTREE_NSPLIT, and say whether the one "
                  "that it chooses itself is right here")
      ->check(CLI::IsMember({"nsplit"}))
      ->excludes(engine)
      ->type_name("nsplit");
  verb.add_option("--kv", options->kv, "Type of the KV pool (default: bf16)")
      ->check(CLI::IsMember({"bf16", "fp8_e4m3"}))
      ->excludes(engine)
      ->type_name("TYPE");
  verb.add_option("--contexts", options->contexts,
                  "Prompt lengths, k = 1000; LENGTH:BATCH for several requests at once (default: " +
                      options->contexts + ")")
      ->needs(engine)
      ->type_name("LIST");
  verb.add_option("--steps", options->steps, "Verify steps to time at each length (default: 30)")
      ->check(quiet(CLI::Range(5, 10'000)))
      ->needs(engine)
      ->type_name("N");
  verb.add_option("--against", options->against,
                  "An earlier --json report, say of another mode, to print beside this one")
      ->needs(engine)
      ->check(quiet(CLI::ExistingFile))
      ->type_name("FILE");
  verb.add_option("--timeout", options->timeout_s,
                  "Seconds that a request, or the kernel's bench, may take (default: 600)")
      ->check(quiet(CLI::PositiveNumber))
      ->type_name("SECONDS");
  verb.add_flag("--json", options->json, "Print the result as JSON");
  verb.footer(
      "--engine measures what is in force and changes nothing: for off against on, run it in one "
      "mode with --json > off.json, switch with `kdtreectl mode`, and run it again with --against "
      "off.json. Its requests compete with the engine's other work.");
}

}  // namespace kdtree
