// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "agent/util/result.h"

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

// What the fuzzers share. Each is LLVMFuzzerTestOneInput: with clang a libFuzzer program, else with
// run_corpus.cpp a program that runs the files given to it.
namespace fuzz {

// A property that must hold for every input.
inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "broken: %s\n", what);
  std::abort();
}

// What every error owes its reader: something, in one line.
inline void require_one_line(const kdtree::Error& error) {
  require(!error.what.empty(), "an error says what went wrong");
  require(error.what.find('\n') == std::string::npos, "an error is one line");
  require(error.hint.find('\n') == std::string::npos, "a hint is one line");
}

// The first byte chooses among `count` ways to use the rest.
inline unsigned choose(std::string_view& text, unsigned count) {
  if (text.empty()) return 0;
  const auto way = static_cast<unsigned char>(text.front()) % count;
  text.remove_prefix(1);
  return way;
}

}  // namespace fuzz
