// SPDX-License-Identifier: Apache-2.0
#include "agent/cli/facts_json.h"

#include "agent/util/or_null.h"

namespace kdtree {
namespace {

using Json = nlohmann::ordered_json;

Json batches_json(const std::map<std::uint32_t, std::uint64_t>& batches) {
  Json out = Json::object();
  for (const auto& [batch, compares] : batches) out[std::to_string(batch)] = compares;
  return out;
}

Json hand_backs(const RankStats& stats) {
  Json out = Json::object();
  for (std::size_t i = 0; i < stats.handed_back.size(); ++i)
    if (stats.handed_back[i] > 0) out[hand_back_name(i)] = stats.handed_back[i];
  return out;
}

}  // namespace

Json to_json(const Verdict& verdict, const ValidateConfig& limits) {
  Json ranks = Json::array();
  for (const auto& rank : verdict.ranks)
    ranks.push_back({{"rank", rank.rank},
                     {"verdict", verdict_name(rank.kind)},
                     {"reason", or_null(rank.reason)},
                     {"compares", rank.compares},
                     {"mismatches", rank.mismatches},
                     {"max_abs", or_null(rank.max_abs)},
                     {"max_ulp", or_null(rank.max_ulp)},
                     {"mean_ulp", or_null(rank.mean_ulp)},
                     {"max_mean_ulp", or_null(rank.max_mean_ulp)},
                     {"worst_layer", or_null(rank.worst_layer)},
                     {"worst_request", or_null(rank.worst_request)},
                     {"worst_batch", or_null(rank.worst_batch)},
                     {"worst_head", or_null(rank.worst_head)},
                     {"longest_prefix", rank.longest_prefix},
                     {"batches", batches_json(rank.batches)}});
  return {{"verdict", verdict_name(verdict.kind)},
          {"reasons", verdict.reasons},
          {"release", verdict.release_id},
          {"engine_version", or_null(verdict.engine_version)},
          {"engine_fingerprint", or_null(verdict.engine_fingerprint)},
          {"compares", verdict.compares},
          {"fewest_compares", verdict.fewest_compares},
          {"mismatches", verdict.mismatches},
          {"max_abs", or_null(verdict.max_abs)},
          {"max_ulp", or_null(verdict.max_ulp)},
          {"mean_ulp", or_null(verdict.mean_ulp)},
          {"max_mean_ulp", or_null(verdict.max_mean_ulp)},
          {"longest_prefix", verdict.longest_prefix},
          {"batches", batches_json(verdict.batches)},
          {"limits",
           {{"min_compares", limits.min_compares},
            {"max_ulp", limits.max_ulp},
            {"mean_ulp", limits.mean_ulp}}},
          {"ranks", ranks}};
}

Json to_json(const RankView& view) {
  Json out = {{"rank", view.rank}};
  if (!view.stats) {
    out["missing"] = view.missing;
    return out;
  }
  const RankStats& stats = *view.stats;
  out["pid"] = stats.pid;
  out["patch"] = patch_state_name(stats.patch_state);
  out["mode"] =
      stats.patch_state == PatchState::active ? Json(to_string(stats.mode)) : Json(nullptr);
  out["reason"] = or_null(stats.reason);
  out["release"] = or_null(stats.release_id);
  out["control_generation"] = stats.control_generation;
  out["device"] = or_null(stats.device_name);
  out["device_uuid"] = or_null(stats.device_uuid);
  out["engine_version"] = or_null(stats.engine_version);
  out["engine_fingerprint"] = or_null(stats.engine_fingerprint);
  out["torch_version"] = or_null(stats.torch_version);
  out["graphs"] = or_null(stats.graphs);
  out["calls_kernel"] = stats.calls_kernel;
  out["calls_engine"] = stats.calls_engine;
  out["handed_back"] = hand_backs(stats);
  out["compares"] = stats.compares;
  out["mismatches"] = stats.mismatches;
  out["max_ulp"] = or_null(stats.max_ulp);
  return out;
}

Json to_json(const UnitState& unit) {
  return {{"name", unit.name},
          {"load_state", unit.load_state},
          {"active_state", unit.active_state},
          {"sub_state", unit.sub_state},
          {"result", or_null(unit.result)},
          {"invocation_id", or_null(unit.invocation_id)},
          {"main_pid", unit.main_pid > 0 ? Json(unit.main_pid) : Json(nullptr)},
          {"need_daemon_reload", unit.need_daemon_reload},
          {"fragment_path", or_null(unit.fragment_path)},
          {"drop_in_paths", unit.drop_in_paths}};
}

}  // namespace kdtree
