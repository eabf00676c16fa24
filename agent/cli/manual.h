// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>

#include "agent/util/mode.h"
#include "agent/util/result.h"

// What --help and the man page say beyond the verbs and options themselves; both are made from the
// same CLI::App.
namespace kdtree {

// What a mode does and costs, in a sentence.
std::string_view mode_costs(Mode mode);

// Name, one-line description, version, exit statuses; and that exactly one verb is needed.
void describe_program(CLI::App& app);

// kdtreectl(8) in roff, from every verb and option of `app`.
std::string man_page(CLI::App& app);

// Thrown by the hidden option that prints the man page, as CLI11 does it for --help.
struct ManualCalled {
  explicit ManualCalled(std::string page) : text(std::move(page)) {}
  std::string text;
};

// A command line that CLI11 didn't accept, in one line with what to do.
tl::unexpected<Error> usage_error(CLI::App& app, const CLI::ParseError& error);

}  // namespace kdtree
