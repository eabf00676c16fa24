// SPDX-License-Identifier: Apache-2.0
#include "agent/metrics/exporter.h"

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
  last_ = std::make_shared<const Look>(look());
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

Exporter::Look Exporter::look() {
  const auto began = steady_clock::now();
  HostView view = read_host_view(options_.root, options_.stats_dir);
  Look now;
  now.at = steady_clock::now();
  add_rank_metrics(now.series, view, ranks_seen_);
  add_moe_metrics(now.series, view, moe_tracker_, now.at);
  add_host_metrics(now.series, view);
  now.live = live_host(view, moe_picture(view, moe_tracker_));
  if (const RankStats* rank = moe_spokesman(view)) now.moe = rank->moe;
  now.config = std::move(view.config);
  now.problems = std::move(view.problems);
  now.took = steady_clock::now() - began;
  return now;
}

void Exporter::keep_looking() {
  std::unique_lock lock(mutex_);
  while (!stopping_.wait_for(lock, options_.period, [this] { return stop_; })) {
    lock.unlock();
    auto now = std::make_shared<const Look>(look());
    const NvmlSnapshot nvml = gpus_.snapshot();
    lock.lock();
    last_ = std::move(now);
    history_.add(nvml, steady_clock::now());
  }
}

std::shared_ptr<const Exporter::Look> Exporter::last() const {
  const std::lock_guard lock(mutex_);
  return last_;
}

bool Exporter::is_young(const Look& look) const {
  return steady_clock::now() - look.at <= options_.files_valid;
}

bool Exporter::turning() const { return is_young(*last()); }

std::vector<prometheus::MetricFamily> Exporter::Collect() const {
  const auto last = this->last();
  Exposition out;
  if (is_young(*last)) {
    out = last->series;
  } else {
    out.add(Metric::stats_up, 0);
    out.add(Metric::host_up, 0);
  }
  add_gpu_metrics(out, gpus_.snapshot(), last->config ? &*last->config : nullptr);
  add_agent_metrics(out, started_);
  out.add(Metric::collector_age, {"files"},
          std::chrono::duration<double>(steady_clock::now() - last->at).count());
  out.add(Metric::collector_duration, {"files"}, last->took.count());
  return out.families();
}

HttpReply Exporter::experts(std::string_view accept) const {
  const auto last = this->last();
  Exposition out;
  if (is_young(*last) && last->moe) add_expert_metrics(out, *last->moe);
  return exposition(out.families(), accept);
}

HttpReply Exporter::live() const {
  const auto last = this->last();
  nlohmann::ordered_json all{
      {"version", KDTREE_VERSION},
      {"time",
       std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count()}};
  GpuHistory history;
  {
    const std::lock_guard lock(mutex_);
    history = history_;
  }
  all["gpus"] = live_gpus(gpus_.snapshot(), history);
  for (const char* part : {"host", "moe", "ranks"})
    all[part] = is_young(*last) ? last->live.at(part) : nlohmann::ordered_json(nullptr);
  return {200, "application/json", all.dump() + "\n"};
}

HttpReply Exporter::answer(const HttpRequest& request) const {
  if (request.path == "/metrics") return exposition(Collect(), request.accept);
  if (request.path == "/metrics/experts") return experts(request.accept);
  if (request.path == "/live.json") return live();
  if (request.path == "/healthz")
    return turning() ? HttpReply{200, std::string(kPlain), "ok\n"}
                     : HttpReply{503, std::string(kPlain), "files are not being read\n"};
  for (const PageFile& file : page_files())
    if (file.path == request.path) return {200, std::string(file.type), std::string(file.text)};
  return {404, std::string(kPlain),
          "not found; there are / /metrics /metrics/experts and /healthz\n"};
}

std::vector<std::string> Exporter::problems() const {
  std::vector<std::string> found = last()->problems;
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
