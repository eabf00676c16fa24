// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "agent/util/result.h"

// <release>/manifest.json: what a release was made from, for what, and its files' digests. Written
// once by deploy, last, after everything else of the release; never changed. Read by kdtreectl and
// by the patch in each worker.
namespace kdtree {

inline constexpr int kManifestFormat = 1;

struct Manifest {
  std::string release;             // its id: also the name of its folder; at most 63 characters
  std::string created;             // UTC, "2026-11-29T17:30:46Z"
  std::string kdtree_version;      // "0.1.0"
  std::string source_digest;       // sha256 over the sources it was built from
  std::string device;              // "cuda" or "cpu": what it was built for
  std::vector<std::string> archs;  // "90", "120"; empty with device cpu
  std::string nvcc;                // "13.0"; "" with device cpu
  std::string torch;               // version that libkdtree_torch.so was linked against
  std::string python;              // the engine's interpreter, absolute path
  std::string python_version;
  std::string engine;              // "sglang"
  std::string engine_version;      // "0.5.17"
  std::string engine_fingerprint;  // of the engine at deploy
  bool engine_accepted = false;    // kdtree was not tested with it, the operator accepted it
  std::string driver;              // of the GPUs at deploy; "" with device cpu, or unknown
  std::string selftest_device;     // "cpu" or the GPU's name: where the kernel was proven
  int selftest_cases = 0;
  std::vector<std::string> proven_kv;  // types of KV pool, beside the model's own, that it proved
  std::map<std::string, std::string>
      files;  // relative path -> sha256; not manifest.json and build.log
};

nlohmann::ordered_json to_json(const Manifest& manifest);

// What a release depends on and finds on the host; "" = unknown.
struct Ground {
  std::string engine_version;
  std::string engine_fingerprint;
  std::string torch;
  std::string python_version;
  std::string driver;
};

// Each thing that is known on both sides and is not what the release was made for: "driver 590.1,
// the release was made for 580.2". Of Python major and minor version count. A worker of the engine
// decides in the same way (kdtree_patch/release.py) and stands aside. Empty = none.
std::vector<std::string> not_made_for(const Manifest& manifest, const Ground& ground);

// Errors: refused; a newer format says that a newer kdtreectl is needed.
Result<Manifest> parse_manifest(std::string_view text, const std::string& where);

// Reads <release>/manifest.json. Errors: refused: missing, damaged, or for another release than the
// folder's name says.
Result<Manifest> read_manifest(const std::filesystem::path& release);

// Compares every file's digest and that no other file is there (an engine run by root may add
// bytecode of its own to
// __pycache__ folders). Errors: refused, naming the first
// difference.
Status verify_release(const std::filesystem::path& release, const Manifest& manifest);

}  // namespace kdtree
