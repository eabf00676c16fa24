// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>
#include <zlib.h>

#include <cstring>
#include <string>
#include <vector>

#include "agent/stats/stats_abi.h"
#include "agent/util/clock.h"

// A stats file as a living process (this one) would publish it, for tests to bend.
struct StatsImage {
  kdtree_stats_header header{};
  std::vector<std::uint64_t> tables;

  explicit StatsImage(int rank = 0) {
    std::memcpy(header.magic, KDTREE_STATS_MAGIC, 8);
    header.version = KDTREE_STATS_VERSION;
    header.header_bytes = KDTREE_STATS_HEADER_BYTES;
    header.sequence = 2;
    header.pid = static_cast<std::uint64_t>(::getpid());
    header.pid_start_ticks = kdtree::process_start_ticks(::getpid()).value();
    const std::string boot = kdtree::boot_id();
    std::memcpy(header.boot_id, boot.data(), std::min(boot.size(), sizeof header.boot_id));
    header.updated_boottime_ns = kdtree::boottime_ns();
    header.tp_rank = rank;
    header.tp_size = 8;
    header.moe_ep_rank = header.moe_ep_size = -1;
    header.patch_state = KDTREE_PATCH_ACTIVE;
    header.sort_state = -1;
    header.graphs = -1;
    header.worst_layer = header.worst_request = header.worst_batch = header.worst_head = -1;
    header.start_mode = -1;
    header.max_abs = header.max_ulp = header.max_mean_ulp =
        std::numeric_limits<double>::quiet_NaN();
  }

  void text(char* field, const std::string& value) {
    std::memcpy(field, value.data(), value.size());
  }

  void add_section(std::uint32_t kind, std::uint32_t rows, std::uint32_t cols,
                   const std::vector<std::uint64_t>& cells) {
    header.sections[header.section_count++] = {
        kind, 8, KDTREE_STATS_HEADER_BYTES + tables.size() * 8, rows, cols, 0};
    tables.insert(tables.end(), cells.begin(), cells.end());
  }

  std::vector<std::byte> bytes() const {
    std::vector<std::byte> out(sizeof header + tables.size() * 8);
    kdtree_stats_header sealed = header;
    if (sealed.file_bytes == 0) sealed.file_bytes = out.size();
    std::memcpy(out.data(), &sealed, sizeof sealed);
    if (!tables.empty()) std::memcpy(out.data() + sizeof sealed, tables.data(), tables.size() * 8);
    seal(out);
    return out;
  }

  // Puts the right checksum into `image`.
  static void seal(std::vector<std::byte>& image) {
    constexpr std::size_t kFirst = offsetof(kdtree_stats_header, pid);
    const auto sum =
        static_cast<std::uint32_t>(::crc32(0, reinterpret_cast<const Bytef*>(image.data()) + kFirst,
                                           static_cast<uInt>(image.size() - kFirst)));
    std::memcpy(image.data() + offsetof(kdtree_stats_header, crc32), &sum, sizeof sum);
  }
};
