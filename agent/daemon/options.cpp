// SPDX-License-Identifier: Apache-2.0
#include "agent/daemon/options.h"

#include <CLI/CLI.hpp>

#include "agent/metrics/catalog.h"

namespace kdtree {

Result<AgentCommand> parse_agent_command(int argc, const char* const* argv) {
  CLI::App app{
      "Shows what the GPUs, the kdtree patch and the experts do, as Prometheus metrics on "
      "loopback.",
      "kdtree-agent"};
  AgentOptions options;
  std::string prefix = "/";
  std::string listen;
  std::string web_config;
  std::string format;
  bool version = false;
  app.add_option("--listen", listen,
                 "host:port or unix:/path to serve /metrics on, instead of the configuration's "
                 "agent.listen");
  auto* web =
      app.add_option("--web-config", web_config,
                     "file with TLS and passwords (format of Prometheus' exporters), instead "
                     "of the configuration's agent.web_config");
  app.add_option("--nvml", options.nvml,
                 "path of libnvidia-ml.so.1, instead of the one that the loader finds");
  app.add_option("--stats-dir", options.stats_dir,
                 "folder of the stats files, instead of /run/kdtree/stats");
  app.add_option("--root", prefix, "another tree than / for configuration, /run, /opt and /proc");
  auto* list = app.add_option("--list-metrics", format,
                              "print the metric catalogue (text, json or markdown) and exit")
                   ->expected(0, 1)
                   ->default_str("text")
                   ->check(CLI::IsMember({"text", "json", "markdown"}));
  app.add_flag("--version", version, "print the version and exit");

  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    return AgentCommand{std::nullopt, app.help(), ExitCode::done};
  } catch (const CLI::ParseError& error) {
    return fail(ExitCode::usage, error.what(), "kdtree-agent --help shows the options");
  }
  if (version)
    return AgentCommand{std::nullopt, "kdtree-agent " KDTREE_VERSION "\n", ExitCode::done};
  if (list->count() > 0)
    return AgentCommand{std::nullopt,
                        format == "json"       ? catalog_as_json()
                        : format == "markdown" ? catalog_as_markdown()
                                               : catalog_as_text(),
                        ExitCode::done};

  options.root = Root(prefix);
  if (!listen.empty()) options.listen = listen;
  if (web->count() > 0) options.web_config = web_config;
  if (options.stats_dir.empty()) options.stats_dir = options.root(paths::kStats);
  return AgentCommand{std::move(options), {}, ExitCode::done};
}

}  // namespace kdtree
