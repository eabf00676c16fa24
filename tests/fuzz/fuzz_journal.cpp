// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "agent/plan/journal.h"
#include "agent/plan/manifest.h"
#include "agent/plan/plan.h"
#include "agent/plan/state.h"
#include "agent/util/sha256.h"
#include "fuzz_input.h"

namespace {

namespace fs = std::filesystem;

// A root of its own in memory, gone with the process.
const kdtree::Root& root() {
  static const struct Folder {
    fs::path path = "/dev/shm/kdtree-fuzz-" + std::to_string(::getpid());
    kdtree::Root root{path};
    Folder() { fs::create_directories(root(kdtree::paths::kState) / "journal"); }
    ~Folder() { fs::remove_all(path); }
  } folder;
  return folder.root;
}

void check_plan(const nlohmann::json& value) {
  const auto plan = kdtree::parse_plan(value);
  if (!plan) return fuzz::require_one_line(plan.error());
  const auto again = kdtree::parse_plan(kdtree::to_json(*plan));
  fuzz::require(again.has_value(), "a plan that was read can be written and read");
  fuzz::require(kdtree::plan_hash(*again) == kdtree::plan_hash(*plan), "and stays the same plan");
}

void check_state(std::string_view text) {
  const auto state = kdtree::parse_state(text, "state.json");
  if (!state) return fuzz::require_one_line(state.error());
  const auto written =
      kdtree::to_json(*state).dump(2, ' ', false, nlohmann::json::error_handler_t::replace);
  const auto again = kdtree::parse_state(written, "state.json");
  fuzz::require(again.has_value(), "a state that was read can be written and read");
  fuzz::require(kdtree::to_json(*again) == kdtree::to_json(*state), "and stays the same state");
}

void check_journal(std::string_view text) {
  std::ofstream(root()(kdtree::paths::kState) / "journal" / "active", std::ios::trunc) << text;
  const auto records = kdtree::read_journal(root());
  if (!records) return fuzz::require_one_line(records.error());
  for (const auto& record : *records) fuzz::require(record.is_object(), "a record is an object");
  if (records->empty()) return;
  fuzz::require((*records)[0].value("is", "") == "begin", "the first record begins a change");
  check_plan((*records)[0].value("plan", nlohmann::json::object()));
}

// Each line as a record with the right checksum.
std::string sealed(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const auto line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    out += kdtree::sha256_hex(std::string(line)).substr(0, 16) + " " + std::string(line) + "\n";
  }
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  switch (fuzz::choose(text, 5)) {
    case 0:
      check_journal(text);
      break;
    case 1:
      check_journal(sealed(text));
      break;
    case 2:
      check_plan(nlohmann::json::parse(text, nullptr, false));
      break;
    case 3:
      check_state(text);
      break;
    default:
      if (const auto manifest = kdtree::parse_manifest(text, "manifest.json"); !manifest)
        fuzz::require_one_line(manifest.error());
  }
  return 0;
}
