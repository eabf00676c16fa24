// SPDX-License-Identifier: Apache-2.0
#include "tests/fake_nvml/instructions.h"

#include <sys/stat.h>
#include <time.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>

namespace fake_nvml {
namespace {

using nlohmann::json;

double now_ms() {
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) / 1e6;
}

Fail fail_named(const std::string& name) {
  if (name == "ok" || name == "none") return Fail::none;
  if (name == "lost") return Fail::lost;
  if (name == "hung") return Fail::hung;
  if (name == "unknown") return Fail::unknown;
  if (name == "no_permission") return Fail::no_permission;
  if (name == "reset_required") return Fail::reset_required;
  if (name == "driver_mismatch") return Fail::driver_mismatch;
  if (name == "driver_not_loaded") return Fail::driver_not_loaded;
  throw std::invalid_argument("no failure is called '" + name + "'");
}

unsigned utilization_of(const json& gpu, int index) {
  if (!gpu.contains("utilization")) return 0;
  const json& wanted = gpu.at("utilization");
  if (wanted.is_array()) {
    const auto step = static_cast<std::size_t>(now_ms() / gpu.value("step_ms", 1000.0));
    return wanted.at(step % wanted.size()).get<unsigned>();
  }
  if (wanted.is_string()) {
    if (wanted != "wave")
      throw std::invalid_argument("utilization is neither a number, a list nor \"wave\"");
    const double turn = now_ms() / 60e3 + index / 8.0;
    return static_cast<unsigned>(std::lround(50 + 49 * std::sin(turn * 2 * 3.14159265358979)));
  }
  return wanted.get<unsigned>();
}

Gpu gpu_from(const json& text, int index) {
  Gpu gpu;
  gpu.utilization = utilization_of(text, index);
  gpu.memory_used = text.value("memory_used", gpu.memory_used);
  gpu.power_mw = text.value("power_mw", gpu.power_mw);
  gpu.temperature = text.value("temperature", gpu.temperature);
  gpu.pcie_rx_kb = text.value("pcie_rx_kb", gpu.pcie_rx_kb);
  gpu.pcie_tx_kb = text.value("pcie_tx_kb", gpu.pcie_tx_kb);
  gpu.pcie_delay_ms = text.value("pcie_delay_ms", gpu.pcie_delay_ms);
  gpu.fail = fail_named(text.value("fail", "ok"));
  const json names = text.value("not_supported", json::array());
  for (const json& name : names) gpu.not_supported.insert(name);
  return gpu;
}

Instructions instructions_from(const json& text) {
  Instructions out;
  out.driver = text.value("driver", out.driver);
  out.init = fail_named(text.value("init", "ok"));
  out.count = text.value("count", out.count);
  if (out.count < 0 || out.count > kMaxGpus) throw std::invalid_argument("count is not in 0 to 16");
  const json gpus = text.value("gpus", json::object());
  for (const auto& [key, gpu] : gpus.items()) {
    const int index = std::stoi(key);
    out.gpus.at(static_cast<std::size_t>(index)) = gpu_from(gpu, index);
  }
  const json xids = text.value("xids", json::array());
  for (const json& xid : xids) out.xids.push_back({xid.at("id"), xid.at("gpu"), xid.at("xid")});
  return out;
}

// The parsed file, read again when another one lies there.
struct Cache {
  std::mutex mutex;
  ino_t inode = 0;
  timespec written{};
  off_t size = -1;
  std::optional<json> text;
};

}  // namespace

std::optional<Instructions> instructions_now() {
  static Cache& cache =
      *new Cache;  // never destroyed: other threads may still call while the process ends
  const char* path = std::getenv("KDTREE_FAKE_NVML");
  if (path == nullptr || *path == '\0') return Instructions{};
  const std::lock_guard lock(cache.mutex);
  try {
    struct stat info {};
    if (::stat(path, &info) != 0) throw std::runtime_error("can't be read");
    if (info.st_ino != cache.inode || info.st_size != cache.size ||
        info.st_mtim.tv_sec != cache.written.tv_sec ||
        info.st_mtim.tv_nsec != cache.written.tv_nsec) {
      cache.inode = info.st_ino;
      cache.size = info.st_size;
      cache.written = info.st_mtim;
      cache.text.reset();
      std::ifstream file(path);
      cache.text = json::parse(file);
      instructions_from(*cache.text);
    }
    if (!cache.text) return std::nullopt;
    return instructions_from(*cache.text);
  } catch (const std::exception& error) {
    cache.text.reset();
    std::fprintf(stderr, "fake nvml: %s: %s\n", path, error.what());
    return std::nullopt;
  }
}

}  // namespace fake_nvml
