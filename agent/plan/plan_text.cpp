// SPDX-License-Identifier: Apache-2.0
#include "agent/plan/diff.h"
#include "agent/plan/plan.h"

namespace kdtree {
namespace {

std::string indented(const std::string& text) {
  std::string result;
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t end = std::min(text.find('\n', at), text.size() - 1);
    result += "    " + text.substr(at, end + 1 - at);
    at = end + 1;
  }
  return result;
}

std::string text_of(const std::optional<FileImage>& image) { return image ? image->bytes : ""; }

std::string describe_step(const Step& step) {
  switch (step.kind) {
    case StepKind::write_file:
      return (step.before ? "change " : "create ") + step.path + "\n" +
             indented(line_diff(text_of(step.before), text_of(step.after)));
    case StepKind::remove_file:
      if (step.path == paths::kControl) return "remove " + step.path + "\n";
      return "remove " + step.path + "\n" + indented(line_diff(text_of(step.before), ""));
    case StepKind::set_symlink:
      return "point " + step.path + " to " + step.after->symlink_target +
             (step.before ? " (now " + step.before->symlink_target + ")" : "") + "\n";
    case StepKind::write_control:
      return "tell the running ranks: mode " + std::string(to_string(step.mode_before)) + " -> " +
             std::string(to_string(step.mode)) + "\n";
    case StepKind::daemon_reload:
      return "reload systemd's configuration\n";
    case StepKind::restart_unit:
      return "restart " + step.unit + "\n";
    case StepKind::start_unit:
      return "start " + step.unit + "\n";
    case StepKind::stop_unit:
      return "stop " + step.unit + "\n";
    case StepKind::enable_unit:
      return "enable " + step.unit + "\n";
    case StepKind::disable_unit:
      return "disable " + step.unit + "\n";
    case StepKind::remove_tree:
      return "remove " + step.path + " and all in it\n";
  }
  return {};
}

// The lines that differ; those that don't are the unit's own business.
std::string describe_unit(const Plan& plan) {
  const auto joined = [](const std::vector<std::string>& lines) {
    std::string text;
    for (const auto& line : lines) text += line + "\n";
    return text;
  };
  const std::string both = line_diff(joined(plan.unit_now), joined(plan.unit_then));
  std::string changed;
  for (std::size_t at = 0; at < both.size();) {
    const std::size_t end = both.find('\n', at) + 1;
    if (both[at] != ' ') changed += both.substr(at, end - at);
    at = end;
  }
  return changed.empty() ? "" : "what systemd then has of the engine's unit\n" + indented(changed);
}

std::string describe_gate(const GateExpectation& gate) {
  if (gate.unit.empty()) return {};
  std::string text = "wait until " + gate.unit + " is active and healthy";
  if (gate.ranks > 0)
    text += " and " + std::to_string(gate.ranks) + " ranks report release " + gate.release +
            " in mode " + std::string(to_string(gate.mode));
  return text + "; else all of the above is undone\n";
}

}  // namespace

std::string nothing_to_do(const Plan& plan) {
  return "nothing to do: " +
         (plan.to.none() ? "nothing of kdtree is deployed" : describe(plan.to) + " is in force");
}

std::string to_text(const Plan& plan) {
  if (plan.empty()) return nothing_to_do(plan) + "\n";
  std::string text = std::string(verb_name(plan.verb)) + ": " + describe(plan.from) + " -> " +
                     describe(plan.to) + "\n";
  for (const auto& step : plan.steps) text += describe_step(step);
  text += describe_unit(plan);
  if (!plan.steps.empty()) text += describe_gate(plan.gate);
  for (const auto& step : plan.cleanup) text += describe_step(step);
  return text;
}

}  // namespace kdtree
