// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include "agent/cli/checks.h"
#include "agent/plan/builder.h"
#include "agent/util/subprocess.h"

namespace kdtree {
namespace {

// GPU architectures that the kernel is written and compiled for.
constexpr std::array kArchs = {"90", "120"};

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const auto& part : parts) text += (text.empty() ? "" : ", ") + part;
  return text;
}

void check_gpus(const Config& config, const Facts& facts, CheckList& list) {
  const bool needed = config.kernel.device == KernelDevice::cuda;
  if (facts.gpus.empty()) {
    const std::string why = facts.gpu_error.empty() ? "no GPU" : facts.gpu_error;
    if (needed)
      list.bad("gpus", why,
               "install NVIDIA's driver, or set kernel.device to cpu on a machine for tests");
    else
      list.ok("gpus", why + "; kernel.device is cpu");
    return;
  }
  bool well = true;
  for (const auto& gpu : facts.gpus) {
    const std::string who =
        "GPU " + std::to_string(gpu.index) + (gpu.name.empty() ? "" : " (" + gpu.name + ")");
    if (!gpu.unreadable.empty()) {
      list.bad("gpus", who + " does not answer: " + gpu.unreadable,
               "nvidia-smi; dmesg says whether it was lost");
      well = false;
    } else if (needed &&
               !std::ranges::any_of(kArchs, [&](auto arch) { return gpu.arch == arch; })) {
      list.bad("gpus",
               who + " is sm_" + (gpu.arch.empty() ? "unknown" : gpu.arch) +
                   "; the kernel runs on sm_90 and sm_120",
               "");
      well = false;
    }
  }
  const auto count = static_cast<int>(facts.gpus.size());
  if (needed && count < config.engine.ranks)
    list.warn(
        "gpus",
        std::to_string(count) + " GPUs for engine.ranks " + std::to_string(config.engine.ranks),
        "check engine.ranks, and that this host or container sees every GPU");
  else if (well)
    list.ok("gpus", std::to_string(count) + " x " + facts.gpus.front().name);
}

void check_build(const Config& config, const Facts& facts, CheckList& list) {
  if (config.kernel.device == KernelDevice::cuda) {
    if (const auto nvcc = check_nvcc(facts); !nvcc)
      list.bad("nvcc", nvcc.error());
    else
      list.ok("nvcc", facts.nvcc->version + ", " + facts.nvcc->path);
  }
  std::vector<std::string> missing;
  for (const char* tool : {"cmake", "c++"})
    if (find_program(tool).empty()) missing.emplace_back(tool);
  if (find_program("ninja").empty() && find_program("make").empty()) missing.emplace_back("make");
  if (missing.empty())
    list.ok("build tools", "cmake, c++, make or ninja");
  else
    list.bad("build tools", "missing: " + joined(missing), "apt install cmake g++ make");
  if (facts.source_digest.empty())
    list.bad("sources", std::string(paths::kShare) + " does not hold the kernel and patch sources",
             "install the kdtree package again");
  else
    list.ok("sources",
            std::string(paths::kShare) + ", digest " + facts.source_digest.substr(0, 12));
}

}  // namespace

void check_host(Context&, const Config& config, const Facts& facts, CheckList& list) {
  check_gpus(config, facts, list);
  check_build(config, facts, list);
  if (const auto space = check_space(facts, config); !space)
    list.bad("disk", space.error());
  else
    list.ok("disk", human_bytes(facts.free_bytes) + " free for " + paths::kReleases);
}

}  // namespace kdtree
