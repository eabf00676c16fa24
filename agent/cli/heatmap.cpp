// SPDX-License-Identifier: Apache-2.0
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
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

constexpr std::size_t kColumns = 60;      // without a terminal
constexpr std::size_t kBesideCells = 22;  // of a row: its name and its number
constexpr std::size_t kMaxAnswer = 4u << 20;
constexpr std::chrono::seconds kDeadline{5};

struct HeatmapOptions {
  bool json = false;
  bool once = false;
  double interval_s = 2;
  std::string agent;
  std::string ca;
  std::string user;
};

std::size_t columns() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kColumns;
  return std::clamp<std::size_t>(size.ws_col, kBesideCells + 10, 200) - kBesideCells;
}

// Where /live.json is, and the Unix socket to ask there ("" = none).
struct Source {
  std::string url;
  HttpVia via;
};

Result<Source> source_of(Context& context, const HeatmapOptions& options) {
  std::string address = options.agent;
  Source source;
  source.via.ca_file = options.ca;
  if (!options.user.empty()) {
    const char* password = std::getenv("KDTREE_AGENT_PASSWORD");
    source.via.user = options.user;
    source.via.password = password != nullptr ? password : "";
  }
  bool tls = !options.ca.empty();
  if (address.empty()) {
    KDTREE_TRY_ASSIGN(const auto config, context.config());
    address = config->agent.listen;
    tls = tls || !config->agent.web_config.empty();
  }
  if (address.starts_with("unix:")) {
    source.via.unix_socket = address.substr(5);
    source.url = "http://agent/live.json";
    return source;
  }
  if (address.starts_with("0.0.0.0:")) address.replace(0, 7, "127.0.0.1");
  if (address.starts_with("[::]:")) address.replace(0, 4, "[::1]");
  if (address.find("://") == std::string::npos) address = (tls ? "https://" : "http://") + address;
  source.url = address + "/live.json";
  return source;
}

Result<HeatPicture> take_picture(const Source& source) {
  auto answer = http_get(source.url, kDeadline, kMaxAnswer, source.via);
  if (!answer)
    return fail(ExitCode::refused, "kdtree-agent doesn't answer: " + answer.error().what,
                "systemctl status kdtree-agent");
  if (answer->status == 401)
    return fail(ExitCode::refused, source.url + " wants a name and a password",
                "give --user, and the password in the environment variable KDTREE_AGENT_PASSWORD");
  if (answer->status != 200)
    return fail(ExitCode::refused, source.url + " answered " + std::to_string(answer->status),
                "is that the address of kdtree-agent?");
  return heat_picture(answer->body);
}

// Draws over the last picture until the user interrupts.
Result<ExitCode> watch(Context& context, const HeatmapOptions& options, const Source& source) {
  const InterruptGuard guard;
  std::size_t drawn = 0;
  while (true) {
    KDTREE_TRY_ASSIGN(const auto picture, take_picture(source));
    const auto lines = draw(picture, HeatStyle::colours, columns());
    context.out.drawing(lines, drawn);
    drawn = lines.size();
    const auto until = steady_clock::now() + std::chrono::duration<double>(options.interval_s);
    while (steady_clock::now() < until) {
      if (interrupted()) return ExitCode::done;
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  }
}

Result<ExitCode> run_heatmap(Context& context, const HeatmapOptions& options) {
  KDTREE_TRY_ASSIGN(const Source source, source_of(context, options));
  if (!options.once && !options.json && context.out.colors())
    return watch(context, options, source);
  KDTREE_TRY_ASSIGN(const auto picture, take_picture(source));
  if (options.json) {
    context.out.json(heat_json(picture, source.url));
    return ExitCode::done;
  }
  const HeatStyle style = context.out.colors() ? HeatStyle::colours : HeatStyle::plain;
  context.out.drawing(draw(picture, style, columns()));
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
                  "Where kdtree-agent listens, or unix:/PATH, or an https:// URL (default: "
                  "agent.listen of the configuration)")
      ->type_name("HOST:PORT");
  verb.add_option("--ca", options->ca, "The authority of the agent's certificate, where it has TLS")
      ->type_name("FILE");
  verb.add_option(
          "--user", options->user,
          "Name for an agent that wants one; the password is taken from KDTREE_AGENT_PASSWORD")
      ->type_name("NAME");
  verb.footer("Reads kdtree-agent's /live.json. '?' or '·' is a value that is not known now.");
}

}  // namespace kdtree
