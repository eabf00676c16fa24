// SPDX-License-Identifier: Apache-2.0
#include <sys/stat.h>

#include <csignal>
#include <exception>
#include <string>

#include "agent/cli/manual.h"
#include "agent/cli/verbs.h"

namespace kdtree {
namespace {

constexpr auto kVerbs = {
    setup_doctor,  setup_plan,      setup_deploy,  setup_mode,     setup_verdict,
    setup_status,  setup_rollback,  setup_history, setup_selftest, setup_bench,
    setup_heatmap, setup_uninstall, setup_recover,
};

ExitCode run(int argc, char** argv) {
  Context context;
  context.argv.assign(argv, argv + argc);
  CLI::App app;
  describe_program(app);
  app.add_option_function<std::string>(
         "--root", [&context](const std::string& prefix) { context.root = Root(prefix); },
         "Use the files under this folder instead of /")
      ->check(quiet(CLI::ExistingDirectory))
      ->type_name("DIR");
  for (auto setup : kVerbs) setup(app, context);
  app.add_flag_callback("--man", [&app] { throw ManualCalled(man_page(app)); })->group("");

  try {
    app.parse(argc, argv);
  } catch (const ManualCalled& manual) {
    context.out.line(manual.text);
    return ExitCode::done;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {
      app.exit(error);  // --help and --version
      return ExitCode::done;
    }
    context.outcome = usage_error(app, error);
  } catch (const std::exception& error) {
    context.outcome =
        fail(ExitCode::refused, std::string("internal error: ") + error.what(), "please report it");
  }
  context.out.end_progress();
  if (context.outcome) return *context.outcome;
  context.out.error(context.outcome.error());
  return context.outcome.error().code;
}

}  // namespace
}  // namespace kdtree

int main(int argc, char** argv) {
  umask(022);
  std::signal(SIGPIPE, SIG_IGN);
  try {
    return static_cast<int>(kdtree::run(argc, argv));
  } catch (...) {  // out of memory, while saying so too
    return static_cast<int>(kdtree::ExitCode::refused);
  }
}
