// SPDX-License-Identifier: Apache-2.0
#include <zlib.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "agent/stats/stats_reader.h"

namespace kdtree {
namespace {

static_assert(std::endian::native == std::endian::little, "stats files are little endian");

StatsFile bad(StatsOutcome outcome, std::string detail) {
  StatsFile file;
  file.outcome = outcome;
  file.detail = std::move(detail);
  return file;
}

template <std::size_t n>
std::string text_of(const char (&field)[n]) {
  return std::string(field, ::strnlen(field, n));
}

std::optional<int> known(std::int32_t value) {
  return value < 0 ? std::nullopt : std::optional<int>(value);
}

std::optional<double> compared(double value) {
  return std::isfinite(value) && value >= 0 ? std::optional<double>(value) : std::nullopt;
}

// Empty = the fields make sense; else what does not.
std::string nonsense_in(const kdtree_stats_header& header) {
  if (header.header_bytes != KDTREE_STATS_HEADER_BYTES)
    return "header_bytes is " + std::to_string(header.header_bytes);
  if (header.pid == 0 || header.pid > INT32_MAX) return "pid is " + std::to_string(header.pid);
  if (header.updated_boottime_ns > INT64_MAX) return "updated_boottime_ns is too large";
  if (header.patch_state > KDTREE_PATCH_REFUSED)
    return "patch_state is " + std::to_string(header.patch_state);
  if (header.mode > KDTREE_MODE_ON) return "mode is " + std::to_string(header.mode);
  if (header.sort_state < -1 || header.sort_state > 2)
    return "sort_state is " + std::to_string(header.sort_state);
  if (header.start_mode < -1 || header.start_mode > static_cast<std::int32_t>(KDTREE_MODE_ON))
    return "start_mode is " + std::to_string(header.start_mode);
  if (header.batch_count > KDTREE_STATS_MAX_BATCHES)
    return "batch_count is " + std::to_string(header.batch_count);
  if (header.section_count > KDTREE_STATS_MAX_SECTIONS)
    return "section_count is " + std::to_string(header.section_count);
  if (header.kv_contiguous_pairs > header.kv_pairs) return "kv_contiguous_pairs exceeds kv_pairs";
  if (!std::isfinite(header.sum_mean_ulp) || header.sum_mean_ulp < 0)
    return "sum_mean_ulp is not a sum";
  return {};
}

// Cells of section `section`, or nothing where it doesn't fit the file. rows and cols are 32 bits
// wide, so their product times eight can pass 64 bits: the bound is checked by division.
std::optional<std::uint64_t> cells_of(std::span<const std::byte> image,
                                      const kdtree_stats_section& section) {
  if (section.elem_bytes != 8 || section.offset % 8 != 0 ||
      section.offset < KDTREE_STATS_HEADER_BYTES || section.offset > image.size())
    return std::nullopt;
  const std::uint64_t room = (image.size() - section.offset) / 8;
  const std::uint64_t cells = std::uint64_t{section.rows} * section.cols;
  return cells > room ? std::nullopt : std::optional(cells);
}

std::vector<std::uint64_t> table_at(std::span<const std::byte> image, std::uint64_t offset,
                                    std::uint64_t cells) {
  std::vector<std::uint64_t> table(cells);
  if (cells > 0) std::memcpy(table.data(), image.data() + offset, cells * 8);
  return table;
}

std::string read_moe(std::span<const std::byte> image, const kdtree_stats_header& header,
                     bool with_tables, std::optional<MoeStats>& out) {
  MoeStats moe;
  moe.layers = header.moe_layers;
  moe.experts = header.moe_experts;
  moe.top_k = header.moe_top_k;
  moe.first_layer = header.moe_first_layer;
  moe.steps = header.moe_steps;
  moe.tokens = header.moe_tokens;
  std::size_t section_bytes = 0;
  for (std::uint32_t i = 0; i < header.section_count; ++i) {
    const kdtree_stats_section& section = header.sections[i];
    const auto cells = cells_of(image, section);
    if (!cells) return "section " + std::to_string(i) + " does not fit the file";
    section_bytes += *cells * 8;
    if (section_bytes > image.size()) return "sections overlap";
    const auto keep = [&](std::vector<std::uint64_t>& table) {
      if (with_tables) table = table_at(image, section.offset, *cells);
    };
    const auto shaped = [&](std::uint32_t cols) {
      return section.rows == header.moe_layers && section.cols == cols;
    };
    const auto by_rank = [&] {
      const bool same = moe.step_ranks == 0 || moe.step_ranks == section.cols;
      moe.step_ranks = section.cols;
      return same && section.rows == header.moe_layers;
    };
    bool fits = true;
    switch (section.kind) {
      case KDTREE_SECTION_EXPERT_TOKENS:
        fits = shaped(header.moe_experts);
        keep(moe.expert_tokens);
        break;
      case KDTREE_SECTION_UNIQUE_EXPERTS:
        fits = shaped(1);
        keep(moe.unique_experts);
        break;
      case KDTREE_SECTION_LAYER_STEPS:
        fits = shaped(1);
        keep(moe.layer_steps);
        break;
      case KDTREE_SECTION_IDLE_RANKS:
        fits = by_rank();
        keep(moe.idle_ranks);
        break;
      case KDTREE_SECTION_PEAKS:
        fits = shaped(1);
        keep(moe.peaks);
        break;
      case KDTREE_SECTION_STRAGGLERS:
        fits = by_rank();
        keep(moe.stragglers);
        break;
      case KDTREE_SECTION_PASS_ROWS:
        fits = section.cols == 2;
        keep(moe.pass_rows);
        break;
      default:
        break;
    }
    if (!fits) return "section " + std::to_string(i) + " has another shape than the header says";
  }
  if (moe.layers > 0 && moe.experts > 0) out = std::move(moe);
  return {};
}

RankStats decoded(const kdtree_stats_header& header) {
  RankStats stats;
  stats.pid = static_cast<std::int64_t>(header.pid);
  stats.pid_start_ticks = header.pid_start_ticks;
  stats.boot_id = text_of(header.boot_id);
  stats.publications = header.publications;
  stats.updated = std::chrono::nanoseconds(static_cast<std::int64_t>(header.updated_boottime_ns));
  stats.tp_rank = known(header.tp_rank);
  stats.tp_size = known(header.tp_size);
  stats.moe_ep_rank = known(header.moe_ep_rank);
  stats.moe_ep_size = known(header.moe_ep_size);
  stats.device_uuid = text_of(header.device_uuid);
  stats.device_name = text_of(header.device_name);
  stats.release_id = text_of(header.release_id);
  stats.engine_version = text_of(header.engine_version);
  stats.engine_fingerprint = text_of(header.engine_fingerprint);
  stats.torch_version = text_of(header.torch_version);
  stats.library_sha256 = text_of(header.library_sha256);
  stats.environment_sha256 = text_of(header.environment_sha256);
  stats.patch_state = static_cast<PatchState>(header.patch_state);
  stats.mode = static_cast<Mode>(header.mode);
  stats.control_generation = header.control_generation;
  stats.reason = text_of(header.reason);
  stats.sort_state = static_cast<SortState>(header.sort_state);
  if (header.graphs >= 0) stats.graphs = header.graphs != 0;
  if (header.start_mode >= 0) stats.start_mode = static_cast<Mode>(header.start_mode);
  stats.calls_kernel = header.calls_kernel;
  stats.calls_engine = header.calls_engine;
  std::copy(std::begin(header.handed_back), std::end(header.handed_back),
            stats.handed_back.begin());
  stats.compares = header.compares;
  stats.mismatches = header.mismatches;
  stats.max_abs = compared(header.max_abs);
  stats.max_ulp = compared(header.max_ulp);
  stats.sum_mean_ulp = header.sum_mean_ulp;
  stats.max_mean_ulp = compared(header.max_mean_ulp);
  stats.longest_prefix = header.longest_prefix;
  stats.worst_layer = known(header.worst_layer);
  stats.worst_request = known(header.worst_request);
  stats.worst_batch = known(header.worst_batch);
  stats.worst_head = known(header.worst_head);
  stats.worst_prefix = header.worst_prefix;
  for (std::uint32_t i = 0; i < header.batch_count; ++i)
    stats.batches.push_back(
        {header.batches[i].batch, header.batches[i].compares, header.batches[i].calls});
  stats.kv_pairs = header.kv_pairs;
  stats.kv_contiguous_pairs = header.kv_contiguous_pairs;
  return stats;
}

// As a writer makes a file before its first publication: zeros.
bool is_fresh(std::span<const std::byte> image) {
  constexpr std::size_t kUntil = offsetof(kdtree_stats_header, pid);
  return image.size() >= sizeof(kdtree_stats_header) &&
         std::all_of(image.begin(), image.begin() + kUntil,
                     [](std::byte byte) { return byte == std::byte{0}; });
}

}  // namespace

StatsFile decode_stats(std::span<const std::byte> image, int last_rank_with_tables) {
  kdtree_stats_header header;
  if (image.size() > KDTREE_STATS_MAX_BYTES)
    return bad(StatsOutcome::too_large, "larger than 16 MiB");
  if (is_fresh(image)) return bad(StatsOutcome::torn, "nothing was published yet");
  if (image.size() >= sizeof header.magic &&
      std::memcmp(image.data(), KDTREE_STATS_MAGIC, sizeof header.magic) != 0)
    return bad(StatsOutcome::foreign, "does not begin with " KDTREE_STATS_MAGIC);
  if (image.size() < sizeof header)
    return bad(StatsOutcome::truncated, std::to_string(image.size()) + " bytes, a header has " +
                                            std::to_string(sizeof header));
  std::memcpy(&header, image.data(), sizeof header);
  if (header.version != KDTREE_STATS_VERSION)
    return bad(StatsOutcome::newer, "format version " + std::to_string(header.version) +
                                        ", this program reads version " +
                                        std::to_string(KDTREE_STATS_VERSION));
  if (header.file_bytes > image.size())
    return bad(StatsOutcome::truncated,
               std::to_string(image.size()) + " bytes of " + std::to_string(header.file_bytes));
  if (header.file_bytes < sizeof header || header.file_bytes < image.size())
    return bad(StatsOutcome::damaged, "says " + std::to_string(header.file_bytes) +
                                          " bytes and has " + std::to_string(image.size()));
  if (header.sequence == 0 || header.sequence % 2 != 0)
    return bad(StatsOutcome::torn, "a publication was under way");
  const auto* bytes = reinterpret_cast<const Bytef*>(image.data());
  constexpr std::size_t kFirst = offsetof(kdtree_stats_header, pid);
  if (::crc32(0, bytes + kFirst, static_cast<uInt>(image.size() - kFirst)) != header.crc32)
    return bad(StatsOutcome::damaged, "checksum is wrong");
  if (std::string wrong = nonsense_in(header); !wrong.empty())
    return bad(StatsOutcome::damaged, wrong);

  RankStats stats = decoded(header);
  const bool with_tables = stats.tp_rank.value_or(kEveryRank) <= last_rank_with_tables;
  if (std::string wrong = read_moe(image, header, with_tables, stats.moe); !wrong.empty())
    return bad(StatsOutcome::damaged, wrong);
  StatsFile file;
  file.outcome = StatsOutcome::ok;
  file.writer = StatsWriter{stats.pid, stats.tp_rank};
  file.stats = std::move(stats);
  return file;
}

}  // namespace kdtree
