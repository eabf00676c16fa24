// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <nlohmann/json.hpp>

#include "agent/plan/builder.h"
#include "agent/util/sha256.h"

namespace kdtree {
namespace {

constexpr std::uint64_t kSpaceForCuda = 512ull << 20;
constexpr std::uint64_t kSpaceForCpu = 64ull << 20;
constexpr int kOldestNvcc = 1208;  // 12.8 is the first with sm_120
constexpr int kOldestArch = 80;

int version_number(const std::string& version) {
  int major = 0;
  int minor = 0;
  std::sscanf(version.c_str(), "%d.%d", &major, &minor);
  return major * 100 + minor;
}

std::string joined(const std::vector<std::string>& parts, const std::string& between) {
  std::string text;
  for (const auto& part : parts) text += (text.empty() ? "" : between) + part;
  return text;
}

// More than one difference is a list of its own (plan_deploy).
std::string brief(const std::vector<std::string>& differences) {
  if (differences.empty()) return {};
  return differences.size() == 1 ? ": " + differences.front()
                                 : ": " + std::to_string(differences.size()) + " differences";
}

Status check_engine(const Facts& facts, const Config& config, bool accept_engine) {
  if (!facts.user_error.empty())
    return fail(ExitCode::refused, facts.user_error,
                config.engine.whole_unit() ? "make that user, or name another as engine.user"
                                           : "make that user, or name another in the unit's User=");
  if (!facts.engine)
    return fail(ExitCode::refused, "the engine can't be looked at: " + facts.engine_error,
                "check engine.python in " + std::string(paths::kConfig));
  const EngineFacts& engine = *facts.engine;
  if (engine.name.empty() || engine.version.empty())
    return fail(ExitCode::refused, config.engine.python + " has no sglang package",
                "name the Python that runs the engine as engine.python");
  if (engine.torch.empty())
    return fail(ExitCode::refused, config.engine.python + " has no torch",
                "name the Python that runs the engine as engine.python");
  if (engine.known) return {};
  const std::string differences = brief(engine.differences);
  if (!engine.binds)
    return fail(
        ExitCode::refused,
        "kdtree's patch does not fit this " + engine.name + " " + engine.version + differences,
        "this engine needs a newer kdtree");
  if (accept_engine || facts.state.accepted_engines.contains(engine.fingerprint)) return {};
  return fail(
      ExitCode::refused,
      "kdtree was not tested with this " + engine.name + " " + engine.version + differences,
      "the patch would bind: look at the difference, then kdtreectl deploy --accept-engine");
}

Result<std::vector<std::string>> choose_archs(const Facts& facts, const Config& config) {
  std::vector<std::string> archs = config.kernel.archs;
  for (const auto& gpu : facts.gpus) {
    const bool there = std::find(archs.begin(), archs.end(), gpu.arch) != archs.end();
    if (!there && !config.kernel.archs.empty())
      return fail(ExitCode::refused,
                  "kernel.archs (" + joined(config.kernel.archs, ", ") + ") leaves out GPU " +
                      std::to_string(gpu.index) + ", " + gpu.name + " (sm_" + gpu.arch + ")",
                  "add \"" + gpu.arch + "\", or leave kernel.archs empty");
    if (!there) archs.push_back(gpu.arch);
  }
  std::sort(archs.begin(), archs.end());
  archs.erase(std::unique(archs.begin(), archs.end()), archs.end());
  if (archs.empty() || facts.gpus.empty())
    return fail(ExitCode::refused,
                "no GPU found" + (facts.gpu_error.empty() ? "" : ": " + facts.gpu_error),
                "kernel.device = \"cpu\" builds the CPU implementation only");
  for (const auto& arch : archs)
    if (arch.size() > 4 || std::stoi(arch) < kOldestArch)
      return fail(ExitCode::refused, "the kernel does not run on sm_" + arch,
                  "GPUs from sm_80 on are supported");
  return archs;
}

}  // namespace

bool nvcc_is_new_enough(const std::string& version) {
  return version_number(version) >= kOldestNvcc;
}

Status check_nvcc(const Facts& facts) {
  if (!facts.nvcc)
    return fail(ExitCode::refused, "no nvcc found, looked for " + joined(facts.nvcc_searched, ", "),
                kNvccHint);
  if (!nvcc_is_new_enough(facts.nvcc->version))
    return fail(
        ExitCode::refused,
        facts.nvcc->path + " is version " + facts.nvcc->version + ", 12.8 or newer is needed",
        kNvccHint);
  return {};
}

Status check_space(const Facts& facts, const Config& config) {
  const std::uint64_t needed =
      config.kernel.device == KernelDevice::cuda ? kSpaceForCuda : kSpaceForCpu;
  if (facts.free_bytes >= needed) return {};
  return fail(ExitCode::refused,
              std::string(paths::kReleases) + " has " + std::to_string(facts.free_bytes >> 20) +
                  " MiB free, a build needs " + std::to_string(needed >> 20),
              "free space on that filesystem");
}

Result<BuildInputs> build_inputs(const Facts& facts, const Config& config, bool accept_engine) {
  KDTREE_TRY(check_engine(facts, config, accept_engine));
  BuildInputs inputs;
  inputs.engine = *facts.engine;
  inputs.python = config.engine.python;
  inputs.device = config.kernel.device;
  inputs.source_digest = facts.source_digest;
  if (inputs.source_digest.empty())
    return fail(ExitCode::refused,
                std::string("the sources that a release is built from are not in ") + paths::kShare,
                "install the kdtree package whole");
  const bool cuda = inputs.device == KernelDevice::cuda;
  if (cuda) {
    KDTREE_TRY_ASSIGN(inputs.archs, choose_archs(facts, config));
    KDTREE_TRY(check_nvcc(facts));
    inputs.nvcc = facts.nvcc;
    inputs.driver = facts.driver;
  }
  KDTREE_TRY(check_space(facts, config));
  return inputs;
}

std::string release_id(const BuildInputs& inputs) {
  const nlohmann::ordered_json identity = {{"version", KDTREE_VERSION},
                                           {"sources", inputs.source_digest},
                                           {"device", std::string(to_string(inputs.device))},
                                           {"archs", inputs.archs},
                                           {"nvcc", inputs.nvcc ? inputs.nvcc->version : ""},
                                           {"python", inputs.python},
                                           {"python_version", inputs.engine.python},
                                           {"torch", inputs.engine.torch},
                                           {"engine", inputs.engine.fingerprint},
                                           {"driver", inputs.driver}};
  return std::string(KDTREE_VERSION) + "-" + sha256_hex(identity.dump()).substr(0, 12);
}

Manifest expected_manifest(const BuildInputs& inputs) {
  Manifest manifest;
  manifest.release = release_id(inputs);
  manifest.kdtree_version = KDTREE_VERSION;
  manifest.source_digest = inputs.source_digest;
  manifest.device = to_string(inputs.device);
  manifest.archs = inputs.archs;
  manifest.nvcc = inputs.nvcc ? inputs.nvcc->version : "";
  manifest.torch = inputs.engine.torch;
  manifest.python = inputs.python;
  manifest.python_version = inputs.engine.python;
  manifest.engine = inputs.engine.name;
  manifest.engine_version = inputs.engine.version;
  manifest.engine_fingerprint = inputs.engine.fingerprint;
  manifest.engine_accepted = !inputs.engine.known;
  manifest.driver = inputs.driver;
  return manifest;
}

}  // namespace kdtree
