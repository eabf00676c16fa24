// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/util/result.h"

// The time of a verify step as a client of a running engine sees it.
namespace kdtree {

// `batch` greedy requests at once, each of a prompt of `context` tokens.
struct BenchShape {
  long context = 0;
  int batch = 1;
  bool operator==(const BenchShape&) const = default;
};

// "1k,4k,65000,16k:4": tokens (k = 1000), and behind a colon the batch. Errors: usage.
Result<std::vector<BenchShape>> parse_shapes(std::string_view text);

// One streamed answer. seen: at each chunk, the first one being prefill's; verifies: the engine's
// own count of verify steps, which it gives at the end; nullopt = it gave none.
struct BenchRun {
  struct Chunk {
    double seconds = 0;  // on any clock, the same for all runs
    long tokens = 0;     // given out so far
  };
  std::vector<Chunk> seen;
  std::optional<long> verifies;
  long chunks_in_all = 0;  // those after the last one in `seen` included
};

struct BenchPoint {
  BenchShape shape;
  double ms = 0;             // a verify step
  double tokens_per_s = 0;   // of all requests together
  double tokens_a_step = 0;  // of one request: accepted drafts and the engine's own token
  long steps = 0;            // timed
};

// Over the time in which every run was past its first steps and none had ended. A chunk is a step,
// unless the engine counted otherwise. Errors: refused if there was no such time. Pure.
Result<BenchPoint> step_time(const BenchShape& shape, const std::vector<BenchRun>& runs);

struct BenchLimits {
  long steps = 30;                              // of each request
  std::chrono::seconds longest{30};             // then what was seen has to be enough
  std::chrono::milliseconds deadline{600'000};  // of one request, prefill included
};

// Runs one shape against the SGLang server at `url`: the prompts once for prefill and warm-up, then
// timed. `progress` is told what goes on, from any thread but one at a time. Errors: refused: the
// server doesn't answer, or refuses the prompt.
Result<BenchPoint> measure_shape(const std::string& url, const BenchShape& shape,
                                 const BenchLimits& limits,
                                 const std::function<void(std::string_view)>& progress);

}  // namespace kdtree
