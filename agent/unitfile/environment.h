// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "agent/unitfile/quoting.h"
#include "agent/unitfile/unit_file.h"
#include "agent/util/result.h"
#include "agent/util/root.h"

// The environment that systemd gives a service: manager < Environment= < EnvironmentFile=.
namespace kdtree {

// The text of an EnvironmentFile (systemd.exec(5)): NAME=value lines, comments with # or ;, quotes,
// backslash continuations. Lines that systemd would ignore are left out. No expansion of any kind
// happens there.
std::map<std::string, std::string> parse_environment_file(std::string_view text);

// The files that a path of EnvironmentFile=, which may be a glob, stands for: those that are there.
std::vector<std::string> environment_file_paths(const Root& root, const std::string& pattern);

// A value as it has to stand in an EnvironmentFile. Errors: usage for a newline or NUL.
Result<std::string> quote_for_environment_file(std::string_view value);

// All assignments of Environment= over the files, later ones winning, with `%` as written (a
// drop-in that repeats them gets the same expansion). Errors: usage: not understood.
Result<std::map<std::string, std::string>> environment_of(const std::vector<UnitFile>& files);

// `first` in front of `rest`, with empty parts and further copies of `first` left out: an empty
// part of PYTHONPATH would mean the working directory.
std::string compose_path_list(const std::string& first, std::string_view rest);

}  // namespace kdtree
