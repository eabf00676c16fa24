// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "agent/cli/heatmap_view.h"
#include "agent/cli/verbs.h"
#include "agent/util/http_get.h"
#include "agent/util/interrupt.h"

namespace kdtree {
namespace {

using std::chrono::steady_clock;

constexpr std::size_t kColumns = 60;
constexpr std::size_t kMaxScrape = 4u << 20;
constexpr std::chrono::seconds kDeadline{5};

struct HeatmapOptions {
  bool json = false;
  bool once = false;
  double interval_s = 2;
  std::string agent;
};

bool is_terminal() {
  const char* term = std::getenv("TERM");
  return ::isatty(STDOUT_FILENO) == 1 && std::getenv("NO_COLOR") == nullptr && term != nullptr &&
         std::string_view(term) != "dumb";
}

Result<std::string> metrics_url(Context& context, const HeatmapOptions& options) {
  std::string address = options.agent;
  if (address.empty()) {
    KDTREE_TRY_ASSIGN(const auto config, context.config());
    address = config->agent.listen;
  }
  if (address.starts_with("0.0.0.0:")) address.replace(0, 7, "127.0.0.1");
  if (address.starts_with("[::]:")) address.replace(0, 4, "[::1]");
  return "http://" + address + "/metrics";
}

Result<HeatSample> take_sample(const std::string& url) {
  auto answer = http_get(url, kDeadline, kMaxScrape);
  if (!answer)
    return fail(ExitCode::refused, "kdtree-agent doesn't answer: " + answer.error().what,
                "systemctl status kdtree-agent");
  if (answer->status != 200)
    return fail(ExitCode::refused, url + " answered " + std::to_string(answer->status),
                "is that the address of kdtree-agent?");
  KDTREE_TRY_ASSIGN(const auto scrape, parse_scrape(answer->body));
  return heat_sample(scrape);
}

// Draws over the last picture until the user interrupts.
Result<ExitCode> watch(Context& context, const HeatmapOptions& options, const std::string& url) {
  const InterruptGuard guard;
  Heatmap heatmap(kColumns);
  std::size_t drawn = 0;
  while (true) {
    KDTREE_TRY_ASSIGN(auto sample, take_sample(url));
    heatmap.add(std::move(sample));
    if (drawn > 0) context.out.line("\x1b[" + std::to_string(drawn + 1) + "A");
    const auto lines = heatmap.draw(HeatStyle::blocks);
    for (const std::string& line : lines) context.out.line("\x1b[2K" + line);
    drawn = lines.size();
    const auto until = steady_clock::now() + std::chrono::duration<double>(options.interval_s);
    while (steady_clock::now() < until) {
      if (interrupted()) return ExitCode::done;
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  }
}

Result<ExitCode> run_heatmap(Context& context, const HeatmapOptions& options) {
  KDTREE_TRY_ASSIGN(const std::string url, metrics_url(context, options));
  if (!options.once && !options.json && is_terminal()) return watch(context, options, url);
  Heatmap heatmap(kColumns);
  KDTREE_TRY_ASSIGN(auto sample, take_sample(url));
  heatmap.add(std::move(sample));
  if (options.json) {
    context.out.json(heatmap.json(url));
    return ExitCode::done;
  }
  for (const std::string& line : heatmap.draw(is_terminal() ? HeatStyle::blocks : HeatStyle::plain))
    context.out.line(line);
  return ExitCode::done;
}

}  // namespace

void setup_heatmap(CLI::App& app, Context& context) {
  auto options = std::make_shared<HeatmapOptions>();
  auto& verb = add_verb(app, context, "heatmap",
                        "Draw GPU utilisation and the expert load of each rank in the terminal",
                        [&context, options] { return run_heatmap(context, *options); });
  verb.add_flag("--json", options->json, "Print one sample as JSON");
  verb.add_flag("--once", options->once, "Draw one sample and stop; so it is without a terminal");
  verb.add_option("--interval", options->interval_s, "Seconds between two samples (default: 2)")
      ->check(quiet(CLI::Range(0.5, 3600.0)))
      ->type_name("SECONDS");
  verb.add_option("--agent", options->agent,
                  "Where kdtree-agent listens (default: agent.listen of the configuration)")
      ->type_name("HOST:PORT");
  verb.footer("Reads kdtree-agent's /metrics. '?' or '·' is a value that is not known now.");
}

}  // namespace kdtree
