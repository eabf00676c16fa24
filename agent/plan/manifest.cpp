// SPDX-License-Identifier: Apache-2.0
#include "agent/plan/manifest.h"

#include <nlohmann/json.hpp>

#include "agent/util/file.h"
#include "agent/util/sha256.h"

namespace kdtree {

using nlohmann::json;
using nlohmann::ordered_json;

ordered_json to_json(const Manifest& m) {
  return {{"format", kManifestFormat},
          {"release", m.release},
          {"created", m.created},
          {"kdtree_version", m.kdtree_version},
          {"source_digest", m.source_digest},
          {"device", m.device},
          {"archs", m.archs},
          {"nvcc", m.nvcc},
          {"torch", m.torch},
          {"python", m.python},
          {"python_version", m.python_version},
          {"engine", m.engine},
          {"engine_version", m.engine_version},
          {"engine_fingerprint", m.engine_fingerprint},
          {"selftest_device", m.selftest_device},
          {"selftest_cases", m.selftest_cases},
          {"files", m.files}};
}

Result<Manifest> parse_manifest(std::string_view text, const std::string& where) {
  Manifest m;
  try {
    const json value = json::parse(text);
    if (value.at("format").get<int>() > kManifestFormat)
      return fail(ExitCode::refused, where + " was written by a newer kdtree",
                  "use the kdtreectl that wrote it, or a newer one");
    value.at("release").get_to(m.release);
    value.at("created").get_to(m.created);
    value.at("kdtree_version").get_to(m.kdtree_version);
    value.at("source_digest").get_to(m.source_digest);
    value.at("device").get_to(m.device);
    value.at("archs").get_to(m.archs);
    value.at("nvcc").get_to(m.nvcc);
    value.at("torch").get_to(m.torch);
    value.at("python").get_to(m.python);
    value.at("python_version").get_to(m.python_version);
    value.at("engine").get_to(m.engine);
    value.at("engine_version").get_to(m.engine_version);
    value.at("engine_fingerprint").get_to(m.engine_fingerprint);
    value.at("selftest_device").get_to(m.selftest_device);
    value.at("selftest_cases").get_to(m.selftest_cases);
    value.at("files").get_to(m.files);
  } catch (const json::exception&) {
    return fail(ExitCode::refused, where + " is damaged", "deploy again");
  }
  return m;
}

Result<Manifest> read_manifest(const std::filesystem::path& release) {
  const auto path = release / "manifest.json";
  KDTREE_TRY_ASSIGN(auto text, read_file(path));
  KDTREE_TRY_ASSIGN(auto manifest, parse_manifest(text, path.string()));
  if (manifest.release != release.filename())
    return fail(ExitCode::refused, path.string() + " is of another release, " + manifest.release,
                "deploy again");
  return manifest;
}

Status verify_release(const std::filesystem::path& release, const Manifest& manifest) {
  KDTREE_TRY_ASSIGN(auto found, sha256_tree(release));
  found.erase("manifest.json");
  found.erase("build.log");
  const auto damaged = [&](const std::string& what) {
    return fail(ExitCode::refused, "release " + manifest.release + ": " + what, "deploy again");
  };
  for (const auto& [path, digest] : manifest.files) {
    const auto at = found.find(path);
    if (at == found.end()) return damaged(path + " is missing");
    if (at->second != digest) return damaged(path + " is not what was installed");
    found.erase(at);
  }
  for (const auto& [path, digest] : found)
    if (path.find("/__pycache__/") == std::string::npos)
      return damaged(path + " does not belong there");
  return {};
}

}  // namespace kdtree
