// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <cstdlib>

#include "agent/daemon/options.h"
#include "agent/daemon/serve.h"

namespace {

int complain(const kdtree::Error& error) {
  std::fprintf(stderr, "kdtree-agent: %s%s%s\n", error.what.c_str(), error.hint.empty() ? "" : "; ",
               error.hint.c_str());
  return static_cast<int>(error.code);
}

}  // namespace

int main(int argc, char** argv) {
  const auto command = kdtree::parse_agent_command(argc, argv);
  if (!command) return complain(command.error());
  if (!command->run) {
    std::fputs(command->text.c_str(), stdout);
    return static_cast<int>(command->code);
  }
  const auto served = kdtree::serve(*command->run);
  const int status = served ? 0 : complain(served.error());
  // A thread may hang in NVML for ever; neither it nor the driver's own exit handlers may keep the
  // process.
  std::fflush(nullptr);
  std::_Exit(status);
}
