// SPDX-License-Identifier: Apache-2.0
#include "agent/metrics/exporter.h"

#include <nlohmann/json.hpp>

#include "agent/metrics/page.h"

namespace kdtree {
namespace {

using std::chrono::steady_clock;

constexpr std::string_view kPlain = "text/plain; charset=utf-8";

HttpReply exposition(const std::vector<prometheus::MetricFamily>& families,
                     std::string_view accept) {
  if (wants_openmetrics(accept))
    return {200, std::string(kOpenMetricsFormat), as_openmetrics(families)};
  return {200, std::string(kTextFormat), as_text(families)};
}

}  // namespace

Exporter::Exporter(ExporterOptions options) : options_(std::move(options)), gpus_(options_.gpus) {
  keep(look());
  looker_ = std::thread([this] { keep_looking(); });
}

Exporter::~Exporter() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stopping_.notify_all();
  looker_.join();
}

Exporter::Look Exporter::look() const {
  const auto began = steady_clock::now();
  HostView view = read_host_view(options_.root, options_.stats_dir);
  const auto now = steady_clock::now();
  return {std::move(view), now, now - began};
}

void Exporter::keep(Look look) {
  last_ = std::move(look);
  for (const auto& [rank, stats] : living_ranks(last_.view)) ranks_seen_.insert(rank);
  follow_moe(moe_tracker_, last_.view, last_.at);
}

void Exporter::keep_looking() {
  std::unique_lock lock(mutex_);
  while (!stopping_.wait_for(lock, options_.period, [this] { return stop_; })) {
    lock.unlock();
    Look now = look();
    const NvmlSnapshot nvml = gpus_.snapshot();
    lock.lock();
    keep(std::move(now));
    history_.add(nvml, steady_clock::now());
  }
}

bool Exporter::is_young() const { return steady_clock::now() - last_.at <= options_.files_valid; }

bool Exporter::turning() const {
  const std::lock_guard lock(mutex_);
  return is_young();
}

const Config* Exporter::config() const { return last_.view.config ? &*last_.view.config : nullptr; }

std::vector<prometheus::MetricFamily> Exporter::Collect() const {
  const NvmlSnapshot nvml = gpus_.snapshot();
  Exposition out;
  const std::lock_guard lock(mutex_);
  if (is_young()) {
    add_rank_metrics(out, last_.view, ranks_seen_);
    add_moe_metrics(out, last_.view, moe_tracker_);
    add_host_metrics(out, last_.view);
  } else {
    out.add(Metric::stats_up, 0);
    out.add(Metric::host_up, 0);
  }
  add_gpu_metrics(out, nvml, config());
  add_agent_metrics(out, started_);
  out.add(Metric::collector_age, {"files"},
          std::chrono::duration<double>(steady_clock::now() - last_.at).count());
  out.add(Metric::collector_duration, {"files"}, last_.took.count());
  return std::move(out).families();
}

std::vector<prometheus::MetricFamily> Exporter::experts() const {
  Exposition out;
  const std::lock_guard lock(mutex_);
  if (is_young())
    if (const RankStats* rank = moe_spokesman(last_.view)) add_expert_metrics(out, *rank->moe);
  return std::move(out).families();
}

std::string Exporter::live() const {
  const NvmlSnapshot nvml = gpus_.snapshot();
  nlohmann::ordered_json all{
      {"version", KDTREE_VERSION},
      {"time",
       std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count()}};
  const std::lock_guard lock(mutex_);
  all["gpus"] = live_gpus(nvml, history_);
  nlohmann::ordered_json rest;
  if (is_young()) rest = live_host(last_.view, moe_picture(last_.view, moe_tracker_));
  for (const char* part : {"host", "moe", "ranks"})
    all[part] = rest.is_null() ? nlohmann::ordered_json(nullptr) : std::move(rest[part]);
  return all.dump() + "\n";
}

HttpReply Exporter::answer(const HttpRequest& request) const {
  if (request.path == "/metrics") return exposition(Collect(), request.accept);
  if (request.path == "/metrics/experts") return exposition(experts(), request.accept);
  if (request.path == "/live.json") return {200, "application/json", live()};
  if (request.path == "/healthz")
    return turning() ? HttpReply{200, std::string(kPlain), "ok\n"}
                     : HttpReply{503, std::string(kPlain), "files are not being read\n"};
  for (const PageFile& file : page_files())
    if (file.path == request.path) return {200, std::string(file.type), std::string(file.text)};
  return {404, std::string(kPlain),
          "not found; there are / /metrics /metrics/experts and /healthz\n"};
}

std::vector<std::string> Exporter::problems() const {
  std::vector<std::string> found;
  {
    const std::lock_guard lock(mutex_);
    found = last_.view.problems;
  }
  const NvmlSnapshot nvml = gpus_.snapshot();
  if (nvml.failure && nvml.failure->failure != NvmlFailure::starting)
    found.push_back("NVML is not usable (" + std::string(nvml_failure_name(nvml.failure->failure)) +
                    "): " + nvml.failure->detail);
  for (const GpuSnapshot& gpu : nvml.gpus)
    if (gpu.condition && gpu.condition != GpuCondition::ok)
      found.push_back("GPU " + std::to_string(gpu.index) + " is not usable (" +
                      std::string(gpu_condition_name(*gpu.condition)) + "): " + gpu.detail);
  return found;
}

}  // namespace kdtree
