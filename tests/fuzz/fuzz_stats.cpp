// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>
#include <zlib.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include "agent/stats/control_file.h"
#include "agent/stats/stats_abi.h"
#include "agent/stats/stats_reader.h"
#include "fuzz_input.h"

namespace {

using kdtree::StatsOutcome;

void check(std::span<const std::byte> image) {
  const auto file = kdtree::decode_stats(image);
  fuzz::require(file.stats.has_value() == (file.outcome == StatsOutcome::ok), "values iff whole");
  fuzz::require(file.detail.find('\n') == std::string::npos, "a detail is one line");
  if (!file.stats) return fuzz::require(!file.detail.empty(), "what is not whole says why");
  const auto& stats = *file.stats;
  fuzz::require(stats.pid > 0, "a writer has a pid");
  fuzz::require(!stats.max_abs || std::isfinite(*stats.max_abs), "no invented figures");
  fuzz::require(!stats.max_ulp || std::isfinite(*stats.max_ulp), "no invented figures");
  fuzz::require(!stats.max_mean_ulp || std::isfinite(*stats.max_mean_ulp), "no invented figures");
  if (!stats.moe) return;
  const auto cells = std::size_t{stats.moe->layers} * stats.moe->experts;
  fuzz::require(stats.moe->expert_tokens.empty() || stats.moe->expert_tokens.size() == cells,
                "a table has the shape that it says");
}

// What only a writer can know put right: magic, version, sizes, an even sequence, the checksum.
std::vector<std::byte> sealed(std::span<const std::byte> image) {
  std::vector<std::byte> out(image.begin(), image.end());
  if (out.size() < sizeof(kdtree_stats_header)) out.resize(sizeof(kdtree_stats_header));
  kdtree_stats_header header;
  std::memcpy(&header, out.data(), sizeof header);
  std::memcpy(header.magic, KDTREE_STATS_MAGIC, sizeof header.magic);
  header.version = KDTREE_STATS_VERSION;
  header.header_bytes = KDTREE_STATS_HEADER_BYTES;
  header.file_bytes = out.size();
  header.sequence = 2;
  std::memcpy(out.data(), &header, sizeof header);
  constexpr std::size_t kFirst = offsetof(kdtree_stats_header, pid);
  header.crc32 =
      static_cast<std::uint32_t>(::crc32(0, reinterpret_cast<const Bytef*>(out.data()) + kFirst,
                                         static_cast<uInt>(out.size() - kFirst)));
  std::memcpy(out.data(), &header, sizeof header);
  return out;
}

const kdtree::Root& root() {
  static const struct Folder {
    std::filesystem::path path = "/dev/shm/kdtree-fuzz-" + std::to_string(::getpid());
    kdtree::Root root{path};
    Folder() { std::filesystem::create_directories(root(kdtree::paths::kRun)); }
    ~Folder() { std::filesystem::remove_all(path); }
  } folder;
  return folder.root;
}

void check_control(std::string_view text) {
  std::ofstream(root()(kdtree::paths::kControl), std::ios::trunc) << text;
  const auto control = kdtree::read_control(root());
  if (!control) return fuzz::require_one_line(control.error());
  fuzz::require(control->has_value(), "a file that is there is not absent");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  const unsigned way = fuzz::choose(text, 3);
  const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
  if (way == 0) check(bytes);
  if (way == 1) check(sealed(bytes));
  if (way == 2) check_control(text);
  return 0;
}
