// SPDX-License-Identifier: Apache-2.0
#include "agent/gate/more_checks.h"

#include <algorithm>
#include <chrono>
#include <set>

#include "agent/gate/unit_journal.h"
#include "agent/util/http_get.h"

namespace kdtree {
namespace {

constexpr std::chrono::seconds kAnswerDeadline{60};
constexpr std::size_t kQuoted = 200;
constexpr std::uint64_t kMib = 1024 * 1024;

}  // namespace

Result<std::string> ask_golden(const GoldenPrompt& prompt) {
  const auto answer = http_post(prompt.url, prompt.request, kAnswerDeadline);
  if (!answer) return "golden prompt: " + answer.error().what;
  if (answer->status != 200)
    return "golden prompt: " + prompt.url + " answers " + std::to_string(answer->status);
  if (answer->body.find(prompt.expect) != std::string::npos) return std::string();
  return fail(ExitCode::rolled_back,
              "golden prompt: the answer holds no \"" + printable(prompt.expect, kQuoted) +
                  "\", it is: " + printable(answer->body, kQuoted),
              "gate.golden in " + std::string(paths::kConfig) + " says what is asked and expected");
}

Result<std::string> check_headroom(const Result<GpuList>& gpus, const RankSet& ranks,
                                   std::uint64_t least_bytes) {
  if (!gpus) return "GPU memory: " + gpus.error().what;
  std::set<std::string> used;
  for (const auto& view : ranks.ranks)
    if (view.stats && !view.stats->device_uuid.empty()) used.insert(view.stats->device_uuid);
  for (const auto& gpu : gpus->gpus) {
    if (!used.empty() && !used.contains(gpu.uuid)) continue;
    const std::string who = "GPU " + std::to_string(gpu.index);
    if (!gpu.free_bytes) return who + ": its memory can't be read";
    if (*gpu.free_bytes < least_bytes)
      return fail(ExitCode::rolled_back,
                  who + " has " + std::to_string(*gpu.free_bytes / kMib) +
                      " MiB left, gate.gpu_free_mib is " + std::to_string(least_bytes / kMib),
                  "a smaller modes.<mode>.mem_fraction_static leaves more");
  }
  return std::string();
}

}  // namespace kdtree
