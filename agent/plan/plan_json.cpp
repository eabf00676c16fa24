// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "agent/plan/plan.h"
#include "agent/util/sha256.h"

// A plan as JSON and back: what --json prints, what is hashed, what the journal holds.
namespace kdtree {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::array kKinds = {
    StepKind::write_file,    StepKind::remove_file,  StepKind::set_symlink, StepKind::write_control,
    StepKind::daemon_reload, StepKind::restart_unit, StepKind::start_unit,  StepKind::stop_unit,
    StepKind::enable_unit,   StepKind::disable_unit, StepKind::remove_tree};
constexpr std::array kVerbs = {Verb::deploy, Verb::mode, Verb::rollback, Verb::uninstall};

struct Damaged {};

std::string hex_of(const std::string& bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string hex;
  for (const char c : bytes) {
    hex += kDigits[static_cast<unsigned char>(c) >> 4];
    hex += kDigits[static_cast<unsigned char>(c) & 15];
  }
  return hex;
}

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}

// Text where the bytes are UTF-8, else hex: JSON has no bytes.
ordered_json bytes_json(const std::string& bytes) {
  ordered_json text = {{"text", bytes}};
  try {
    [[maybe_unused]] const std::string checked = text.dump();
    return text;
  } catch (const json::type_error&) {
    return {{"hex", hex_of(bytes)}};
  }
}

std::string bytes_of(const json& value) {
  if (value.contains("text")) return value.at("text").get<std::string>();
  return from_hex(value.at("hex").get<std::string>());
}

ordered_json image_json(const std::optional<FileImage>& image) {
  if (!image) return nullptr;
  if (!image->symlink_target.empty()) return {{"symlink", image->symlink_target}};
  ordered_json value = bytes_json(image->bytes);
  value["mode"] = image->attributes.mode;
  value["uid"] = image->attributes.uid;
  value["gid"] = image->attributes.gid;
  for (const auto& [name, bytes] : image->attributes.xattrs) value["xattrs"][name] = hex_of(bytes);
  return value;
}

std::optional<FileImage> image_of(const json& value) {
  if (value.is_null()) return std::nullopt;
  FileImage image;
  if (value.contains("symlink")) {
    value.at("symlink").get_to(image.symlink_target);
    return image;
  }
  image.bytes = bytes_of(value);
  value.at("mode").get_to(image.attributes.mode);
  value.at("uid").get_to(image.attributes.uid);
  value.at("gid").get_to(image.attributes.gid);
  if (value.contains("xattrs"))
    for (const auto& [name, hex] : value.at("xattrs").items())
      image.attributes.xattrs[name] = from_hex(hex.get<std::string>());
  return image;
}

Mode mode_of(const json& value) {
  const auto mode = parse_mode(value.get<std::string>());
  if (!mode) throw Damaged{};
  return *mode;
}

ordered_json step_json(const Step& step) {
  ordered_json value = {{"kind", std::string(step_kind_name(step.kind))}};
  if (!step.path.empty()) value["path"] = step.path;
  if (!step.unit.empty()) value["unit"] = step.unit;
  if (step.kind == StepKind::write_file || step.kind == StepKind::remove_file ||
      step.kind == StepKind::set_symlink) {
    value["before"] = image_json(step.before);
    value["after"] = image_json(step.after);
  }
  if (step.kind == StepKind::write_control) {
    value["mode"] = std::string(to_string(step.mode));
    value["mode_before"] = std::string(to_string(step.mode_before));
    value["release"] = step.release;
    value["release_before"] = step.release_before;
  }
  return value;
}

Step step_of(const json& value) {
  Step step;
  const auto kind = value.at("kind").get<std::string>();
  const auto found = std::find_if(kKinds.begin(), kKinds.end(),
                                  [&](StepKind each) { return step_kind_name(each) == kind; });
  if (found == kKinds.end()) throw Damaged{};
  step.kind = *found;
  step.path = value.value("path", "");
  step.unit = value.value("unit", "");
  if (value.contains("before")) step.before = image_of(value.at("before"));
  if (value.contains("after")) step.after = image_of(value.at("after"));
  if (step.kind == StepKind::write_control) {
    step.mode = mode_of(value.at("mode"));
    step.mode_before = mode_of(value.at("mode_before"));
    value.at("release").get_to(step.release);
    value.at("release_before").get_to(step.release_before);
  }
  return step;
}

ordered_json steps_json(const std::vector<Step>& steps) {
  auto list = ordered_json::array();
  for (const auto& step : steps) list.push_back(step_json(step));
  return list;
}

std::vector<Step> steps_of(const json& value) {
  std::vector<Step> steps;
  for (const auto& step : value) steps.push_back(step_of(step));
  return steps;
}

ordered_json gate_json(const GateExpectation& gate) {
  return {{"unit", gate.unit},
          {"ranks", gate.ranks},
          {"release", gate.release},
          {"mode", std::string(to_string(gate.mode))}};
}

GateExpectation gate_of(const json& value) {
  return {value.at("unit").get<std::string>(), value.at("ranks").get<int>(),
          value.at("release").get<std::string>(), mode_of(value.at("mode"))};
}

}  // namespace

std::string_view verb_name(Verb verb) {
  switch (verb) {
    case Verb::deploy:
      return "deploy";
    case Verb::mode:
      return "mode";
    case Verb::rollback:
      return "rollback";
    case Verb::uninstall:
      return "uninstall";
  }
  return "?";
}

std::string_view step_kind_name(StepKind kind) {
  switch (kind) {
    case StepKind::write_file:
      return "write_file";
    case StepKind::remove_file:
      return "remove_file";
    case StepKind::set_symlink:
      return "set_symlink";
    case StepKind::write_control:
      return "write_control";
    case StepKind::daemon_reload:
      return "daemon_reload";
    case StepKind::restart_unit:
      return "restart_unit";
    case StepKind::start_unit:
      return "start_unit";
    case StepKind::stop_unit:
      return "stop_unit";
    case StepKind::enable_unit:
      return "enable_unit";
    case StepKind::disable_unit:
      return "disable_unit";
    case StepKind::remove_tree:
      return "remove_tree";
  }
  return "?";
}

ordered_json to_json(const Plan& plan) {
  ordered_json after = to_json(plan.after);
  after.erase("history");  // grows with every change and decides nothing
  return {{"verb", std::string(verb_name(plan.verb))},
          {"from", to_json(plan.from)},
          {"to", to_json(plan.to)},
          {"forced", plan.forced},
          {"restarts_engine", plan.restarts_engine},
          {"engine_was_active", plan.engine_was_active},
          {"unit", {{"before", plan.unit_now}, {"after", plan.unit_then}}},
          {"steps", steps_json(plan.steps)},
          {"gate", gate_json(plan.gate)},
          {"cleanup", steps_json(plan.cleanup)},
          {"undo_gate", gate_json(plan.undo_gate)},
          {"fallback", steps_json(plan.fallback)},
          {"state_after", std::move(after)},
          {"notes", plan.notes}};
}

Result<Plan> parse_plan(const json& value) {
  const auto damaged = [] { return fail(ExitCode::refused, "the plan is damaged"); };
  try {
    Plan plan;
    const auto verb = value.at("verb").get<std::string>();
    const auto found = std::find_if(kVerbs.begin(), kVerbs.end(),
                                    [&](Verb each) { return verb_name(each) == verb; });
    if (found == kVerbs.end()) return damaged();
    plan.verb = *found;
    plan.from = deployed_of(value.at("from"));
    plan.to = deployed_of(value.at("to"));
    value.at("forced").get_to(plan.forced);
    value.at("restarts_engine").get_to(plan.restarts_engine);
    value.at("engine_was_active").get_to(plan.engine_was_active);
    if (const auto unit = value.find("unit"); unit != value.end()) {
      unit->at("before").get_to(plan.unit_now);
      unit->at("after").get_to(plan.unit_then);
    }
    plan.steps = steps_of(value.at("steps"));
    plan.gate = gate_of(value.at("gate"));
    plan.cleanup = steps_of(value.at("cleanup"));
    plan.undo_gate = gate_of(value.at("undo_gate"));
    plan.fallback = steps_of(value.at("fallback"));
    json after = value.at("state_after");
    after["history"] = json::array();
    KDTREE_TRY_ASSIGN(plan.after, parse_state(after.dump(), "the plan's state"));
    value.at("notes").get_to(plan.notes);
    return plan;
  } catch (const json::exception&) {
    return damaged();
  } catch (const Damaged&) {
    return damaged();
  } catch (const std::logic_error&) {  // std::stoi of a hex digit that is none
    return damaged();
  }
}

std::string plan_hash(const Plan& plan) {
  ordered_json value = to_json(plan);
  value.erase("notes");
  return sha256_hex(value.dump(-1, ' ', false, json::error_handler_t::replace));
}

}  // namespace kdtree
