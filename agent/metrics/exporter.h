// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <prometheus/collectable.h>

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "agent/metrics/collect.h"
#include "agent/metrics/http_server.h"
#include "agent/metrics/live.h"
#include "agent/nvml/gpu_sampler.h"

namespace kdtree {

struct ExporterOptions {
  Root root;
  std::filesystem::path stats_dir;  // used as it is
  GpuSamplerOptions gpus;
  std::chrono::milliseconds period{1000};       // between two looks at the files
  std::chrono::milliseconds files_valid{5000};  // a look that is older is not shown
};

// Everything that the agent knows, always ready: one thread looks at the files, the sampler's at
// the GPUs, and a scrape only writes down what they found last. Collect() and answer() never wait
// for a file or a GPU.
class Exporter : public prometheus::Collectable {
 public:
  explicit Exporter(ExporterOptions options);  // returns after the first look at the files
  ~Exporter() override;
  Exporter(const Exporter&) = delete;
  Exporter& operator=(const Exporter&) = delete;

  std::vector<prometheus::MetricFamily> Collect() const override;

  // GET /metrics (text or OpenMetrics, by Accept), /metrics/experts, /live.json, /healthz (200
  // while turning(), else 503), / and its parts; 404 for all else.
  HttpReply answer(const HttpRequest& request) const;

  // False once the thread that looks at the files has not come round for `files_valid`.
  bool turning() const;

  // What is wrong now, one line each, in a stable order: for the log.
  std::vector<std::string> problems() const;

 private:
  struct Look {
    HostView view;
    std::chrono::steady_clock::time_point at;
    std::chrono::duration<double> took{0};
  };
  Look look() const;
  void keep_looking();
  // The rest with the lock held.
  void keep(Look look);
  bool is_young() const;
  const Config* config() const;
  std::vector<prometheus::MetricFamily> experts() const;
  std::string live() const;

  const ExporterOptions options_;
  const std::chrono::system_clock::time_point started_ = std::chrono::system_clock::now();
  GpuSampler gpus_;
  mutable std::mutex mutex_;  // of all that follows; never held while a file or a GPU is read
  std::condition_variable stopping_;
  bool stop_ = false;
  Look last_;
  std::set<int> ranks_seen_;
  MoeTracker moe_tracker_;
  GpuHistory history_;
  std::thread looker_;
};

}  // namespace kdtree
