// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "agent/util/result.h"

// Running another program: an argument vector, never a shell; stdin is /dev/null; always with a
// deadline.
namespace kdtree {

struct Command {
  std::vector<std::string> argv;  // argv[0]: absolute path, or a name looked up in our own PATH
  std::map<std::string, std::string>
      environment;                  // added to (and replacing in) our own environment
  std::vector<std::string> unset;   // taken out of it first
  std::filesystem::path directory;  // empty = ours
  std::chrono::milliseconds deadline{60'000};
  std::size_t max_output_bytes =
      4u << 20;  // of each stream kept; what comes after it is read and dropped
  std::function<void(std::string_view line)>
      on_line;  // each line of stdout and stderr as it comes; may be empty
};

struct Outcome {
  int status = -1;  // exit status; -1 = ended by `signal`
  int signal = 0;
  std::string output;  // stdout
  std::string errors;  // stderr
  bool ok() const { return status == 0; }
  // The last non-empty line of stderr, or else of stdout: what to show an operator.
  std::string last_line() const;
};

// Runs `command` to its end. A status other than 0 is an Outcome, not an error. Errors: refused if
// it can't be started, if the deadline passed or the user interrupted (interrupt.h); its whole
// process group is then killed, and left behind (said in the error) if it isn't gone 5 s later.
Result<Outcome> run_command(const Command& command);

// The absolute path of program `name` in our PATH; empty if there is none.
std::string find_program(const std::string& name);

}  // namespace kdtree
