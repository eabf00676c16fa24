// SPDX-License-Identifier: Apache-2.0
#include "agent/plan/plan_checks.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "agent/plan/engine_unit.h"
#include "agent/unitfile/engine_command.h"
#include "agent/util/root.h"

namespace kdtree {
namespace {

// The unit that a file of ours belongs to.
std::string unit_of(const std::string& path) {
  const std::filesystem::path file(path);
  const auto folder = file.parent_path();
  return folder.extension() == ".d" ? folder.stem().string() : file.filename().string();
}

Status check_unit(const Facts& facts, const Config& config) {
  const UnitState& unit = facts.unit.state;
  if (!config.engine.whole_unit() && !unit.exists())
    return fail(ExitCode::refused, "there is no unit " + config.engine.unit + " on this host",
                "name an existing one as engine.unit, or give engine.command and kdtree writes it");
  if (unit.exists() && unit.load_state != "loaded")
    return fail(ExitCode::refused,
                config.engine.unit + " is " + unit.load_state +
                    (unit.load_error.empty() ? "" : ": " + unit.load_error),
                "systemctl status " + config.engine.unit);
  if (!config.engine.whole_unit() || !unit.exists()) return {};
  const std::string ours = engine_unit_path(config);
  if (unit.fragment_path != ours)
    return fail(ExitCode::refused, config.engine.unit + " exists already, in " + unit.fragment_path,
                "leave engine.command out to give it a drop-in, or name another unit");
  const auto now = facts.files.find(ours);
  if (now != facts.files.end() && now->second && !facts.state.managed.contains(ours) &&
      !is_written_by_kdtree(now->second->bytes))
    return fail(ExitCode::refused, ours + " exists already and is not kdtree's",
                "leave engine.command out to give it a drop-in, or move the file away");
  return {};
}

// Never doubled: what patches the engine besides us has to go first.
Status check_hand_made(const Facts& facts) {
  for (const auto& each : facts.hand_made)
    if (each.doubles) return fail(ExitCode::refused, each.what, each.next);
  return {};
}

Status check_engine(const Facts& facts, const Wish& wish) {
  const Manifest& manifest = *facts.release;
  if (!facts.engine) {
    if (wish.verb != Verb::deploy) return {};
    return fail(ExitCode::refused, "the engine can't be looked at: " + facts.engine_error,
                "check engine.python in " + std::string(paths::kConfig));
  }
  const auto ground = ground_of(facts);
  if (ground.torch.empty())
    return fail(ExitCode::refused, "the engine's Python has no torch",
                "name the Python that runs the engine as engine.python");
  const auto differences = not_made_for(manifest, ground);
  if (differences.empty()) return {};
  return fail(ExitCode::refused,
              "release " + manifest.release + " does not fit this host: " + differences.front(),
              "kdtreectl deploy makes one that does");
}

Status check_archs(const Facts& facts, const Config& config) {
  if (config.kernel.device != KernelDevice::cuda || !facts.release) return {};
  for (const auto& gpu : facts.gpus)
    if (std::find(facts.release->archs.begin(), facts.release->archs.end(), gpu.arch) ==
        facts.release->archs.end())
      return fail(ExitCode::refused,
                  "release " + facts.release->release + " has no code for GPU " +
                      std::to_string(gpu.index) + ", " + gpu.name + " (sm_" + gpu.arch + ")",
                  "kdtreectl deploy builds it; kernel.archs = [] takes those of the GPUs present");
  return {};
}

}  // namespace

Status check_same_unit(const State& state, const Config& config) {
  if (state.current.none()) return {};
  std::string other;
  if (state.unit_before && state.unit_before->unit != config.engine.unit)
    other = state.unit_before->unit;
  for (const auto& [path, digest] : state.managed)
    if (path != kEngineEnvironment && path != engine_unit_path(config)) other = unit_of(path);
  if (other.empty()) return {};
  if (other == config.engine.unit)
    return fail(
        ExitCode::refused,
        config.engine.whole_unit()
            ? "kdtree has a drop-in for " + other + ", the configuration has engine.command now"
            : "kdtree wrote " + other + " whole, the configuration has no engine.command now",
        "put engine.command back as it was, kdtreectl uninstall, then change it and deploy");
  return fail(
      ExitCode::refused,
      "kdtree is under " + other + ", the configuration names " + config.engine.unit + " now",
      "set engine.unit back to " + other + ", kdtreectl uninstall, then change it and deploy");
}

Status check_ranks(const std::string& exec_start, const Config& config) {
  const auto command = EngineCommand::parse(exec_start);
  if (!command) return {};
  const auto size = [&](const std::vector<std::string>& names, int otherwise) {
    const auto text = command->value_of(names);
    if (!text) return otherwise;
    int number = 0;
    const auto parsed = std::from_chars(text->data(), text->data() + text->size(), number);
    return parsed.ec == std::errc{} && parsed.ptr == text->data() + text->size() ? number : 0;
  };
  const int tp = size({"--tp-size", "--tensor-parallel-size", "--tp"}, 0);
  const int pp = size({"--pp-size", "--pipeline-parallel-size", "--pp"}, 1);
  const int nodes = size({"--nnodes"}, 1);
  if (tp < 1 || pp < 1 || nodes < 1) return {};  // not given as numbers here
  if (pp / nodes > 1)
    return fail(ExitCode::refused,
                "the engine runs with --pp-size " + std::to_string(pp) +
                    ", and kdtree tells its processes apart by their tensor parallel rank alone",
                "run it without pipeline parallelism");
  const int here = tp / std::max(nodes / pp, 1);
  if (here == config.engine.ranks) return {};
  return fail(ExitCode::refused,
              "engine.ranks is " + std::to_string(config.engine.ranks) +
                  ", but the engine's command line makes " + std::to_string(here) + " (--tp-size " +
                  std::to_string(tp) + (nodes > 1 ? ", --nnodes " + std::to_string(nodes) : "") +
                  ")",
              "set engine.ranks to " + std::to_string(here));
}

Status check_target(const Facts& facts, const Config& config, const Wish& wish) {
  if (!facts.root)
    return fail(ExitCode::refused, std::string(verb_name(wish.verb)) + " has to be run by root",
                "sudo kdtreectl " + std::string(verb_name(wish.verb)));
  KDTREE_TRY(check_same_unit(facts.state, config));
  if (wish.target.none() && !facts.unit.state.exists()) return {};
  KDTREE_TRY(check_unit(facts, config));
  if (wish.target.none()) return {};
  if (!facts.release || facts.release->release != wish.target.release)
    return fail(ExitCode::refused, "release " + wish.target.release + " is not there or damaged",
                "kdtreectl deploy makes it again");
  KDTREE_TRY(check_hand_made(facts));
  if (wish.target.cold) return {};
  KDTREE_TRY(check_engine(facts, wish));
  return check_archs(facts, config);
}

Ground ground_of(const Facts& facts) {
  Ground ground;
  ground.driver = facts.driver;
  if (!facts.engine) return ground;
  ground.engine_version = facts.engine->version;
  ground.engine_fingerprint = facts.engine->fingerprint;
  ground.torch = facts.engine->torch;
  ground.python_version = facts.engine->python;
  return ground;
}

}  // namespace kdtree
