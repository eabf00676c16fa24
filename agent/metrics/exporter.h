// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <prometheus/collectable.h>

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>
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
// the GPUs, and a scrape only copies what they found last. Collect() and answer() never wait for a
// file, a GPU or another scrape.
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
    Exposition series;
    std::optional<Config> config;
    std::optional<MoeStats> moe;  // of the rank that speaks for all
    nlohmann::ordered_json live;
    std::vector<std::string> problems;
    std::chrono::steady_clock::time_point at;
    std::chrono::duration<double> took{0};
  };
  Look look();
  void keep_looking();
  std::shared_ptr<const Look> last() const;
  bool is_young(const Look& look) const;
  HttpReply experts(std::string_view accept) const;
  HttpReply live() const;

  const ExporterOptions options_;
  const std::chrono::system_clock::time_point started_ = std::chrono::system_clock::now();
  GpuSampler gpus_;
  std::set<int> ranks_seen_;
  MoeTracker moe_tracker_;
  mutable std::mutex mutex_;
  std::condition_variable stopping_;
  bool stop_ = false;
  std::shared_ptr<const Look> last_;
  GpuHistory history_;  // guarded by mutex_
  std::thread looker_;
};

}  // namespace kdtree
