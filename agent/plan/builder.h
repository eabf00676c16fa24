// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "agent/config/config.h"
#include "agent/plan/facts.h"
#include "agent/plan/manifest.h"
#include "agent/util/result.h"
#include "agent/util/root.h"
#include "agent/util/run_as.h"

// Making a release on this host: the kernel built from /usr/share/kdtree/kernel for the engine's
// Python and GPUs, proven by its selftest, sealed with a manifest. Nothing of what serves is
// touched.
namespace kdtree {

// Everything that decides what a release holds. Equal inputs give the same id, and a release that
// is there is used again.
struct BuildInputs {
  std::string source_digest;
  KernelDevice device = KernelDevice::cuda;
  std::vector<std::string> archs;
  std::optional<NvccFacts> nvcc;
  std::string python;
  EngineFacts engine;
  std::string driver;  // "" with device cpu, or unknown
};

// Pure. Errors: refused, each with the next step: engine unknown and not accepted
// (`accept_engine`), no torch, no GPU, no or an old nvcc, architectures that miss a GPU, sources
// not installed, too little space.
Result<BuildInputs> build_inputs(const Facts& facts, const Config& config, bool accept_engine);

// Whether an nvcc of that version ("12.8") knows every architecture that the kernel is built for.
bool nvcc_is_new_enough(const std::string& version);

// Errors: refused: no nvcc, or one that is too old.
Status check_nvcc(const Facts& facts);

// Errors: refused: what a build needs is not free where releases are kept.
Status check_space(const Facts& facts, const Config& config);

// Where an nvcc comes from, for messages.
inline constexpr const char* kNvccHint =
    "install the CUDA toolkit 12.8 or newer, or the package nvidia-cuda-nvcc into the engine's own "
    "Python, or name a toolkit's folder as kernel.cuda_home";

std::string release_id(const BuildInputs& inputs);

// The manifest as far as it is known before the build.
Manifest expected_manifest(const BuildInputs& inputs);

struct SelftestProof {
  std::string device;  // "cpu" or the GPU's name
  int cases = 0;
  std::vector<std::string> proven_kv = {};
};

struct BuildPorts {
  // Who builds: the engine's user, whose Python and nvcc may be theirs to change. nullopt: we
  // ourselves; where that is root, every tool has to be root's alone.
  std::optional<RunAs> build_as;
  std::function<void(const std::string& stage, const std::string& line)> progress;
  // Runs the selftest of an unfinished release folder. Errors: it failed, or can't be run.
  std::function<Result<SelftestProof>(const std::filesystem::path& release)> selftest;
  std::chrono::milliseconds deadline{std::chrono::minutes(30)};
};

struct BuiltRelease {
  Manifest manifest;
  bool reused = false;
};

// Builds the release, or finds it whole. All or nothing: on an error there is no new folder of that
// id, and a damaged one that was there is there still: it is replaced only by a release that has
// passed its selftest. Errors: refused; the build's log is then /var/lib/kdtree/build-failed.log.
Result<BuiltRelease> build_release(const Root& root, const BuildInputs& inputs,
                                   const BuildPorts& ports);

// Removes the oldest releases but for `keep` of them and those in `needed`. Returns the ids
// removed.
Result<std::vector<std::string>> prune_releases(const Root& root, std::size_t keep,
                                                const std::vector<std::string>& needed);

}  // namespace kdtree
