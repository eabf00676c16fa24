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

void read_utilization(const json& text, Gpu& gpu) {
  if (!text.contains("utilization")) return;
  const json& wanted = text.at("utilization");
  if (wanted.is_string()) {
    if (wanted != "wave")
      throw std::invalid_argument("utilization is neither a number, a list nor \"wave\"");
    gpu.wave = true;
  } else if (wanted.is_array()) {
    gpu.utilization = wanted.get<std::vector<unsigned>>();
    if (gpu.utilization.empty()) throw std::invalid_argument("utilization is an empty list");
  } else {
    gpu.utilization = {wanted.get<unsigned>()};
  }
}

std::string uuid_of(int number) {
  char text[48];
  std::snprintf(text, sizeof text, "GPU-fa4e0000-0000-0000-0000-%012d", number);
  return text;
}

Gpu gpu_from(const json& text, int index) {
  Gpu gpu;
  gpu.uuid = uuid_of(text.value("board", index));
  read_utilization(text, gpu);
  const auto take = [&](const char* key, auto& value) { value = text.value(key, value); };
  take("step_ms", gpu.step_ms);
  take("sample_ms", gpu.sample_ms);
  take("memory_used", gpu.memory_used);
  take("power_mw", gpu.power_mw);
  take("power_limit_mw", gpu.power_limit_mw);
  take("energy_mj", gpu.energy_mj);
  take("temperature", gpu.temperature);
  take("sm_mhz", gpu.sm_mhz);
  take("memory_mhz", gpu.memory_mhz);
  take("sm_max_mhz", gpu.sm_max_mhz);
  take("memory_max_mhz", gpu.memory_max_mhz);
  take("clock_events", gpu.clock_events);
  take("ecc_corrected", gpu.ecc_corrected);
  take("ecc_uncorrected", gpu.ecc_uncorrected);
  take("pcie_rx_kb", gpu.pcie_rx_kb);
  take("pcie_tx_kb", gpu.pcie_tx_kb);
  take("pcie_delay_ms", gpu.pcie_delay_ms);
  take("until_init", gpu.until_init);
  for (const json& process : text.value("processes", json::array()))
    gpu.processes.push_back({process.at("pid"), process.at("memory")});
  const json gpm = text.value("gpm", json::object());
  for (const auto& [id, value] : gpm.items())
    gpu.gpm[static_cast<unsigned>(std::stoul(id))] = value.get<double>();
  gpu.fail = fail_named(text.value("fail", "ok"));
  for (const json& name : text.value("not_supported", json::array()))
    gpu.not_supported.insert(name);
  return gpu;
}

Instructions instructions_from(const json& text) {
  Instructions out;
  out.driver = text.value("driver", out.driver);
  out.load = text.value("load", out.load);
  out.init = fail_named(text.value("init", "ok"));
  out.count = text.value("count", out.count);
  if (out.count < 0 || out.count > kMaxGpus) throw std::invalid_argument("count is not in 0 to 16");
  const json gpus = text.value("gpus", json::object());
  for (int index = 0; index < kMaxGpus; ++index)
    out.gpus[static_cast<std::size_t>(index)] =
        gpu_from(gpus.value(std::to_string(index), json::object()), index);
  const json xids = text.value("xids", json::array());
  for (const json& xid : xids) out.xids.push_back({xid.at("id"), xid.at("gpu"), xid.at("xid")});
  return out;
}

// The file as understood last, read again when another one lies there.
struct Cache {
  std::mutex mutex;
  ino_t inode = 0;
  timespec written{};
  off_t size = -1;
  std::shared_ptr<const Instructions> understood;
};

void look(const char* path, Cache& cache) {
  struct stat info {};
  if (::stat(path, &info) != 0) throw std::runtime_error("can't be read");
  if (info.st_ino == cache.inode && info.st_size == cache.size &&
      info.st_mtim.tv_sec == cache.written.tv_sec && info.st_mtim.tv_nsec == cache.written.tv_nsec)
    return;
  cache.inode = info.st_ino;
  cache.size = info.st_size;
  cache.written = info.st_mtim;
  std::ifstream file(path);
  cache.understood = std::make_shared<const Instructions>(instructions_from(json::parse(file)));
}

}  // namespace

double boot_ms() {
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) / 1e6;
}

unsigned Gpu::utilization_at(double ms, int index) const {
  if (wave) {
    const double turn = ms / 60e3 + index / 8.0;
    return static_cast<unsigned>(std::lround(50 + 49 * std::sin(turn * 2 * 3.14159265358979)));
  }
  return utilization[static_cast<std::size_t>(ms / step_ms) % utilization.size()];
}

std::shared_ptr<const Instructions> instructions_now() {
  static Cache& cache =
      *new Cache;  // never destroyed: other threads may still call while the process ends
  const std::lock_guard lock(cache.mutex);
  const char* path = std::getenv("KDTREE_FAKE_NVML");
  try {
    if (path == nullptr || *path == '\0') {
      if (cache.understood == nullptr || cache.size >= 0)
        cache.understood = std::make_shared<const Instructions>(instructions_from(json::object()));
      cache.size = -1;
      return cache.understood;
    }
    look(path, cache);
  } catch (const std::exception& error) {
    cache.understood.reset();
    std::fprintf(stderr, "fake nvml: %s: %s\n", path, error.what());
  }
  return cache.understood;
}

}  // namespace fake_nvml
