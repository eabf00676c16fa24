// SPDX-License-Identifier: Apache-2.0
#include "agent/cli/bench_steps.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cmath>
#include <limits>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "agent/util/http_stream.h"

namespace kdtree {
namespace {

using Json = nlohmann::json;
using std::chrono::steady_clock;

constexpr long kMaxContext = 2'000'000;
constexpr int kMaxBatch = 256;
constexpr long kSettle = 2;        // steps of a request before its time counts
constexpr long kWarmUp = 4;        // steps of the first round
constexpr long kTokensAStep = 64;  // asked for; what isn't needed is called off
// Every vocabulary has these; an id that it lacks ends the engine, which does not check.
constexpr int kFirstId = 256, kIds = 700;

Result<long> parse_number(std::string_view text, long most) {
  long value = 0, unit = 1;
  std::string_view digits = text;
  if (digits.ends_with('k')) unit = 1000, digits.remove_suffix(1);
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc{} || end != digits.data() + digits.size() || value < 1 ||
      value > most / unit)
    return fail(ExitCode::usage,
                "'" + std::string(text) + "' is not a number from 1 to " + std::to_string(most));
  return value * unit;
}

double now_s() {
  return std::chrono::duration<double>(steady_clock::now().time_since_epoch()).count();
}

std::vector<int> prompt_ids(unsigned seed, long length) {
  std::mt19937 random(seed);
  std::vector<int> ids(static_cast<std::size_t>(length));
  std::ranges::generate(ids, [&] { return kFirstId + static_cast<int>(random() % kIds); });
  return ids;
}

// Requests that run together, until each has done its steps or the time is over.
class Round {
 public:
  Round(std::string url, const BenchShape& shape, long steps, const BenchLimits& limits,
        std::function<void(std::string_view)> progress)
      : url_(std::move(url)),
        shape_(shape),
        steps_(steps),
        limits_(limits),
        progress_(std::move(progress)),
        missing_(shape.batch) {}

  Result<std::vector<BenchRun>> run() {
    std::vector<BenchRun> runs(static_cast<std::size_t>(shape_.batch));
    std::vector<Status> ends(runs.size());
    {
      std::vector<std::jthread> threads;
      for (std::size_t i = 0; i < runs.size(); ++i)
        threads.emplace_back([this, &runs, &ends, i] { ends[i] = request(i, runs[i]); });
    }
    for (const auto& end : ends) KDTREE_TRY(end);
    return runs;
  }

 private:
  Status request(std::size_t index, BenchRun& run) {
    const std::string rid = "kdtree-bench-" + std::to_string(std::random_device{}());
    const Json body = {
        {"rid", rid},
        {"input_ids", prompt_ids(static_cast<unsigned>(index), shape_.context)},
        {"stream", true},
        {"sampling_params",
         {{"temperature", 0}, {"max_new_tokens", kTokensAStep * steps_}, {"ignore_eos", true}}}};
    std::string wrong;
    bool called_off = false;
    auto answer = http_post_lines(url_ + "/generate", body.dump(), limits_.deadline,
                                  [&](std::string_view line) {
                                    if (!line.starts_with("data: {") || !wrong.empty()) return;
                                    read_chunk(line.substr(6), run, wrong, called_off);
                                    if (wrong.empty() && !called_off && enough(index, run)) {
                                      called_off = true;
                                      call_off(rid);
                                    }
                                  });
    if (!answer) return tl::make_unexpected(answer.error());
    if (answer->status != 200) wrong = answer->body.substr(0, answer->body.find('\n'));
    if (!wrong.empty() || answer->status != 200)
      return fail(ExitCode::refused, url_ + " answered " + std::to_string(answer->status) + ": " +
                                         (wrong.empty() ? "nothing" : wrong.substr(0, 300)));
    return {};
  }

  static void read_chunk(std::string_view text, BenchRun& run, std::string& wrong,
                         bool called_off) {
    const Json chunk = Json::parse(text, nullptr, false);
    const Json meta = chunk.is_object() ? chunk.value("meta_info", Json()) : Json();
    const Json tokens = meta.is_object() ? meta.value("completion_tokens", Json()) : Json();
    if (!tokens.is_number_integer() || chunk.contains("error")) {
      wrong = text;
      return;
    }
    ++run.chunks_in_all;
    if (const auto it = meta.find("spec_verify_ct"); it != meta.end() && it->is_number_integer())
      run.verifies = it->get<long>();
    if (!called_off) run.seen.push_back({now_s(), tokens.get<long>()});
  }

  // A request that has done its steps waits for the others.
  bool enough(std::size_t index, const BenchRun& run) {
    const long done = static_cast<long>(run.seen.size()) - 1;
    if (done == steps_ && --missing_ == 0) stop_ = true;
    if (run.seen.back().seconds - run.seen.front().seconds >
        static_cast<double>(limits_.longest.count()))
      stop_ = true;
    if (index == 0 && progress_)
      progress_(std::to_string(std::min(done, steps_)) + " of " + std::to_string(steps_) +
                " steps");
    return stop_;
  }

  void call_off(const std::string& rid) {
    const auto ignored = http_post_lines(url_ + "/abort_request", Json{{"rid", rid}}.dump(),
                                         std::chrono::seconds(10), [](std::string_view) {});
    static_cast<void>(ignored);  // it then ends by itself, later
  }

  std::string url_;
  BenchShape shape_;
  long steps_;
  BenchLimits limits_;
  std::function<void(std::string_view)> progress_;
  std::atomic<int> missing_;
  std::atomic<bool> stop_ = false;
};

}  // namespace

Result<std::vector<BenchShape>> parse_shapes(std::string_view text) {
  std::vector<BenchShape> shapes;
  while (true) {
    const auto comma = text.find(',');
    const std::string_view part = text.substr(0, comma);
    const auto colon = part.find(':');
    BenchShape shape;
    KDTREE_TRY_ASSIGN(shape.context, parse_number(part.substr(0, colon), kMaxContext));
    if (colon != part.npos) {
      KDTREE_TRY_ASSIGN(const long batch, parse_number(part.substr(colon + 1), kMaxBatch));
      shape.batch = static_cast<int>(batch);
    }
    shapes.push_back(shape);
    if (comma == text.npos) return shapes;
    text.remove_prefix(comma + 1);
  }
}

Result<BenchPoint> step_time(const BenchShape& shape, const std::vector<BenchRun>& runs) {
  double begin = -std::numeric_limits<double>::infinity();
  double end = std::numeric_limits<double>::infinity();
  for (const auto& run : runs) {
    if (run.seen.size() <= static_cast<std::size_t>(kSettle))
      return fail(ExitCode::refused,
                  "a request ended after " +
                      std::to_string(run.seen.empty() ? 0 : run.seen.size() - 1) +
                      " steps, too few to time");
    begin = std::max(begin, run.seen[kSettle].seconds);
    end = std::min(end, run.seen.back().seconds);
  }
  BenchPoint point{.shape = shape};
  double per_step = 0;
  int timed = 0;
  for (const auto& run : runs) {
    const auto inside = [&](const BenchRun::Chunk& chunk) {
      return chunk.seconds >= begin && chunk.seconds <= end;
    };
    const auto first = std::ranges::find_if(run.seen, inside);
    const auto last = std::find_if(run.seen.rbegin(), run.seen.rend(), inside);
    if (first == run.seen.end() || last.base() - first < 2) continue;
    const long chunks = run.chunks_in_all - 1;
    const double scale = run.verifies && std::labs(*run.verifies - chunks) > 2
                             ? static_cast<double>(*run.verifies) / static_cast<double>(chunks)
                             : 1.0;
    const double steps = static_cast<double>(last.base() - first - 1) * scale;
    const double seconds = last->seconds - first->seconds;
    const auto tokens = static_cast<double>(last->tokens - first->tokens);
    per_step += 1000 * seconds / steps;
    point.tokens_per_s += tokens / seconds;
    point.tokens_a_step += tokens / steps;
    point.steps = std::max(point.steps, std::lround(steps));
    ++timed;
  }
  if (timed == 0) return fail(ExitCode::refused, "the requests did not run long enough together");
  point.ms = per_step / timed;
  point.tokens_a_step /= timed;
  return point;
}

Result<BenchPoint> measure_shape(const std::string& url, const BenchShape& shape,
                                 const BenchLimits& limits,
                                 const std::function<void(std::string_view)>& progress) {
  progress("prefill");
  KDTREE_TRY(Round(url, shape, kWarmUp, limits, {}).run());
  KDTREE_TRY_ASSIGN(const auto runs,
                    Round(url, shape, limits.steps + kSettle, limits, progress).run());
  return step_time(shape, runs);
}

}  // namespace kdtree
