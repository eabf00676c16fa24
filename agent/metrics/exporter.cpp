// SPDX-License-Identifier: Apache-2.0
#include "agent/metrics/exporter.h"

namespace kdtree {
namespace {

using std::chrono::steady_clock;

constexpr std::string_view kLanding =
    "<!doctype html><html lang=\"en\"><title>kdtree-agent</title><h1>kdtree-agent " KDTREE_VERSION
    "</h1><ul><li><a href=\"/metrics\">/metrics</a>: for Prometheus<li><a "
    "href=\"/healthz\">/healthz</a>: whether the agent itself is well</ul></html>\n";

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
  HostView view = read_host_view(options_.root, options_.stats_dir);
  Look now;
  now.at = steady_clock::now();
  add_rank_metrics(now.series, view, ranks_seen_);
  add_moe_metrics(now.series, view, moe_window_, now.at);
  add_host_metrics(now.series, view);
  now.config = std::move(view.config);
  now.problems = std::move(view.problems);
  return now;
}

void Exporter::keep_looking() {
  std::unique_lock lock(mutex_);
  while (!stopping_.wait_for(lock, options_.period, [this] { return stop_; })) {
    lock.unlock();
    auto now = std::make_shared<const Look>(look());
    lock.lock();
    last_ = std::move(now);
  }
}

bool Exporter::turning() const {
  const std::lock_guard lock(mutex_);
  return steady_clock::now() - last_->at <= options_.files_valid;
}

std::vector<prometheus::MetricFamily> Exporter::Collect() const {
  std::shared_ptr<const Look> last;
  {
    const std::lock_guard lock(mutex_);
    last = last_;
  }
  Exposition out;
  if (steady_clock::now() - last->at <= options_.files_valid) {
    out = last->series;
  } else {
    out.add(Metric::stats_up, 0);
    out.add(Metric::host_up, 0);
  }
  add_gpu_metrics(out, gpus_.snapshot(), last->config ? &*last->config : nullptr);
  add_agent_metrics(out, started_);
  return out.families();
}

HttpReply Exporter::answer(std::string_view path) const {
  if (path == "/metrics") return {200, std::string(kTextFormat), as_text(Collect())};
  if (path == "/") return {200, "text/html; charset=utf-8", std::string(kLanding)};
  if (path == "/healthz")
    return turning() ? HttpReply{200, "text/plain; charset=utf-8", "ok\n"}
                     : HttpReply{503, "text/plain; charset=utf-8", "files are not being read\n"};
  return {404, "text/plain; charset=utf-8", "not found; there are /metrics and /healthz\n"};
}

std::vector<std::string> Exporter::problems() const {
  std::vector<std::string> found;
  {
    const std::lock_guard lock(mutex_);
    found = last_->problems;
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
