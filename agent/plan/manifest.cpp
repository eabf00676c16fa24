// SPDX-License-Identifier: Apache-2.0
#include "agent/plan/manifest.h"

#include <nlohmann/json.hpp>

#include "agent/util/file.h"
#include "agent/util/sha256.h"

namespace kdtree {

using nlohmann::json;
using nlohmann::ordered_json;

namespace {

// "sglang 0.5.17 (fingerprint d4e8f1c69a92f4da)"
std::string named(const std::string& engine, const std::string& version,
                  const std::string& fingerprint) {
  return engine + (engine.empty() ? "" : " ") + version + " (fingerprint " +
         fingerprint.substr(0, 16) + ")";
}

// "3.11" of "3.11.2"
std::string minor_of(const std::string& version) {
  return version.substr(0, version.find('.', version.find('.') + 1));
}

}  // namespace

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
          {"engine_accepted", m.engine_accepted},
          {"driver", m.driver},
          {"selftest_device", m.selftest_device},
          {"selftest_cases", m.selftest_cases},
          {"proven_kv", m.proven_kv},
          {"files", m.files}};
}

std::vector<std::string> not_made_for(const Manifest& manifest, const Ground& ground) {
  std::vector<std::string> lines;
  const auto differ = [&lines](const std::string& what, const std::string& now,
                               const std::string& then) {
    if (!now.empty() && !then.empty() && now != then)
      lines.push_back(what + " " + now + ", the release was made for " + then);
  };
  if (!ground.engine_fingerprint.empty() &&
      ground.engine_fingerprint != manifest.engine_fingerprint)
    lines.push_back(named(manifest.engine, ground.engine_version, ground.engine_fingerprint) +
                    ", the release was made for " +
                    named("", manifest.engine_version, manifest.engine_fingerprint));
  differ("torch", ground.torch, manifest.torch);
  differ("Python", minor_of(ground.python_version), minor_of(manifest.python_version));
  differ("driver", ground.driver, manifest.driver);
  return lines;
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
    m.engine_accepted = value.value("engine_accepted", false);
    m.driver = value.value("driver", "");
    value.at("selftest_device").get_to(m.selftest_device);
    value.at("selftest_cases").get_to(m.selftest_cases);
    m.proven_kv = value.value("proven_kv", m.proven_kv);
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
