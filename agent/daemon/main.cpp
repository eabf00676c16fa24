// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include "agent/daemon/options.h"

int main(int argc, char** argv) {
  const auto command = kdtree::parse_agent_command(argc, argv);
  if (!command) {
    std::fprintf(stderr, "kdtree-agent: %s; %s\n", command.error().what.c_str(),
                 command.error().hint.c_str());
    return static_cast<int>(command.error().code);
  }
  std::fputs(command->text.c_str(), stdout);
  return static_cast<int>(command->code);
}
