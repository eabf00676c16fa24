// SPDX-License-Identifier: Apache-2.0
// formats read FOLDER                 what kdtree's reader makes of each stats file, as JSON
// formats write PREFIX MODE RELEASE   writes PREFIX/run/kdtree/control as kdtreectl does
#include <cstdio>
#include <exception>
#include <iostream>
#include <nlohmann/json.hpp>

#include "agent/stats/control_file.h"
#include "agent/stats/stats_reader.h"

namespace {

using nlohmann::json;

json shown(const kdtree::RankStats& stats) {
  json out = {{"pid", stats.pid},
              {"pid_start_ticks", stats.pid_start_ticks},
              {"boot_id", stats.boot_id},
              {"publications", stats.publications},
              {"updated_ns", stats.updated.count()},
              {"device_uuid", stats.device_uuid},
              {"device_name", stats.device_name},
              {"release_id", stats.release_id},
              {"engine_version", stats.engine_version},
              {"engine_fingerprint", stats.engine_fingerprint},
              {"torch_version", stats.torch_version},
              {"library_sha256", stats.library_sha256},
              {"environment_sha256", stats.environment_sha256},
              {"patch_state", static_cast<int>(stats.patch_state)},
              {"mode", static_cast<int>(stats.mode)},
              {"control_generation", stats.control_generation},
              {"reason", stats.reason},
              {"sort_state", static_cast<int>(stats.sort_state)},
              {"calls_kernel", stats.calls_kernel},
              {"calls_engine", stats.calls_engine},
              {"handed_back", stats.handed_back},
              {"compares", stats.compares},
              {"mismatches", stats.mismatches},
              {"sum_mean_ulp", stats.sum_mean_ulp},
              {"longest_prefix", stats.longest_prefix},
              {"worst_prefix", stats.worst_prefix},
              {"kv_pairs", stats.kv_pairs},
              {"kv_contiguous_pairs", stats.kv_contiguous_pairs}};
  const auto put = [&out](const char* name, const auto& value) {
    out[name] = value ? json(*value) : json();
  };
  put("tp_rank", stats.tp_rank);
  put("tp_size", stats.tp_size);
  put("moe_ep_rank", stats.moe_ep_rank);
  put("moe_ep_size", stats.moe_ep_size);
  put("graphs", stats.graphs);
  put("max_abs", stats.max_abs);
  put("max_ulp", stats.max_ulp);
  put("max_mean_ulp", stats.max_mean_ulp);
  put("worst_layer", stats.worst_layer);
  put("worst_request", stats.worst_request);
  put("worst_batch", stats.worst_batch);
  put("worst_head", stats.worst_head);
  if (stats.start_mode) out["start_mode"] = static_cast<int>(*stats.start_mode);
  for (const auto& batch : stats.batches)
    out["batches"][std::to_string(batch.batch)] = {batch.compares, batch.calls};
  if (const auto& moe = stats.moe)
    out["moe"] = {{"layers", moe->layers},
                  {"experts", moe->experts},
                  {"top_k", moe->top_k},
                  {"first_layer", moe->first_layer},
                  {"steps", moe->steps},
                  {"tokens", moe->tokens},
                  {"expert_tokens", moe->expert_tokens},
                  {"unique_experts", moe->unique_experts},
                  {"layer_steps", moe->layer_steps},
                  {"idle_ranks", moe->idle_ranks},
                  {"step_ranks", moe->step_ranks},
                  {"peaks", moe->peaks},
                  {"stragglers", moe->stragglers},
                  {"pass_rows", moe->pass_rows}};
  return out;
}

int read(const char* folder) {
  const auto dir = kdtree::read_stats_dir(kdtree::Root(), folder);
  if (!dir) return 1;
  json out = json::array();
  for (const auto& file : dir->files) {
    json one = {{"name", file.path.filename().string()},
                {"outcome", kdtree::outcome_name(file.outcome)},
                {"detail", file.detail}};
    if (file.stats) one["stats"] = shown(*file.stats);
    out.push_back(one);
  }
  std::cout << out.dump() << '\n';
  return 0;
}

int write(const char* prefix, const char* mode, const char* release) {
  const auto parsed = kdtree::parse_mode(mode);
  if (!parsed) return 2;
  const auto control = kdtree::write_control(kdtree::Root(prefix), *parsed, release);
  if (!control) return 1;
  std::cout << control->generation << '\n';
  return 0;
}

int run(int argc, char** argv) {
  const std::string verb = argc > 1 ? argv[1] : "";
  if (verb == "read" && argc == 3) return read(argv[2]);
  if (verb == "write" && argc == 5) return write(argv[2], argv[3], argv[4]);
  std::fputs("formats: read FOLDER | write PREFIX MODE RELEASE\n", stderr);
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "formats: %s\n", error.what());
    return 1;
  }
}
