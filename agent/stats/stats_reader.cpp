// SPDX-License-Identifier: Apache-2.0
#include "agent/stats/stats_reader.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>

#include "agent/util/clock.h"
#include "agent/util/file.h"
#include "agent/util/unique_fd.h"

namespace kdtree {
namespace {

constexpr int kAttempts = 5;
constexpr std::chrono::milliseconds kBetweenAttempts{1};

constexpr std::array kOutcomes{
    StatsOutcome::ok,        StatsOutcome::torn,      StatsOutcome::damaged,
    StatsOutcome::truncated, StatsOutcome::foreign,   StatsOutcome::newer,
    StatsOutcome::dead,      StatsOutcome::stale,     StatsOutcome::not_regular,
    StatsOutcome::too_large, StatsOutcome::unreadable};

StatsFile bad(StatsOutcome outcome, std::string detail) {
  StatsFile file;
  file.outcome = outcome;
  file.detail = std::move(detail);
  return file;
}

std::string reason_of(int number) { return std::strerror(number); }

// What the files of one folder share.
struct Reading {
  std::size_t budget;                      // bytes left
  int last_rank_with_tables = kEveryRank;  // decode_stats()
  std::vector<std::byte> image;            // of the file at hand; its memory is used again
};

// The whole file in `image`, or why not.
std::optional<StatsFile> read_image(int fd, std::size_t budget, std::vector<std::byte>& image) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return bad(StatsOutcome::unreadable, reason_of(errno));
  if (info.st_size > KDTREE_STATS_MAX_BYTES)
    return bad(StatsOutcome::too_large, "larger than 16 MiB");
  if (static_cast<std::size_t>(info.st_size) > budget)
    return bad(StatsOutcome::too_large, "the files of this folder together are too large");
  image.resize(static_cast<std::size_t>(info.st_size) + 1);  // one more: it may have grown
  std::size_t got = 0;
  while (got < image.size()) {
    const ssize_t n = ::pread(fd, image.data() + got, image.size() - got, static_cast<off_t>(got));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return bad(StatsOutcome::unreadable, reason_of(errno));
    if (n == 0) break;
    got += static_cast<std::size_t>(n);
  }
  image.resize(got);
  return std::nullopt;
}

std::uint64_t sequence_of(const std::vector<std::byte>& image) {
  std::uint64_t sequence = 0;
  constexpr std::size_t kAt = offsetof(kdtree_stats_header, sequence);
  if (image.size() >= kAt + sizeof sequence)
    std::memcpy(&sequence, image.data() + kAt, sizeof sequence);
  return sequence;
}

// Reads until it is whole. A wrong checksum under a sequence that moved means that writes fell into
// our reads.
StatsFile read_whole(int fd, Reading& reading) {
  auto& [budget, last_rank_with_tables, image] = reading;
  StatsFile file;
  std::optional<std::uint64_t> first_sequence;
  bool moved = false;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    if (attempt > 0) std::this_thread::sleep_for(kBetweenAttempts);
    if (auto failed = read_image(fd, budget, image)) return *failed;
    file = decode_stats(image, last_rank_with_tables);
    if (file.outcome == StatsOutcome::ok) budget -= std::min(budget, image.size());
    if (file.outcome != StatsOutcome::torn && file.outcome != StatsOutcome::damaged &&
        file.outcome != StatsOutcome::truncated)
      return file;
    const std::uint64_t sequence = sequence_of(image);
    moved = moved || (first_sequence && *first_sequence != sequence);
    if (!first_sequence) first_sequence = sequence;
  }
  if (file.outcome == StatsOutcome::damaged && moved)
    return bad(StatsOutcome::torn, "a publication was under way");
  return file;
}

// Turns a whole file whose writer is gone or silent into one without values.
void check_writer(const Root& root, StatsFile& file) {
  const RankStats& stats = *file.stats;
  const auto started = process_start_ticks(static_cast<pid_t>(stats.pid), root);
  const auto now = std::chrono::nanoseconds(static_cast<std::int64_t>(boottime_ns()));
  const std::string who = "process " + std::to_string(stats.pid);
  // The boot id alone proves nothing: a container's services may see another one than its shell
  // does (ProtectKernelTunables= and ProtectControlGroups= mount /proc anew). It only words the
  // reason.
  if (!started || *started != stats.pid_start_ticks) {
    file.outcome = StatsOutcome::dead;
    file.detail = !started ? who + " has ended" : who + " is another one now";
    if (stats.boot_id != boot_id(root)) file.detail += "; written under another boot id";
  } else if (stats.updated > now) {
    file.outcome = StatsOutcome::damaged;
    file.detail = "published in the future";
    file.writer.reset();
  } else if (now - stats.updated > kStatsStaleAfter) {
    file.outcome = StatsOutcome::stale;
    file.detail =
        who + " published nothing for " +
        std::to_string(
            std::chrono::duration_cast<std::chrono::seconds>(now - stats.updated).count()) +
        " s";
  }
  if (file.outcome != StatsOutcome::ok) file.stats.reset();
}

StatsFile read_at(const Root& root, int dir, const char* name, Reading& reading) {
  const UniqueFd fd(::openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY));
  if (!fd && errno == ELOOP) return bad(StatsOutcome::not_regular, "a symbolic link");
  if (!fd && (errno == ENXIO || errno == ENODEV))
    return bad(StatsOutcome::not_regular, "a socket or a device");
  if (!fd) return bad(StatsOutcome::unreadable, reason_of(errno));
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return bad(StatsOutcome::unreadable, reason_of(errno));
  if (!S_ISREG(info.st_mode)) return bad(StatsOutcome::not_regular, "not a regular file");
  StatsFile file = read_whole(fd.get(), reading);
  if (file.outcome == StatsOutcome::ok) check_writer(root, file);
  return file;
}

bool counts_routing(const StatsFile& file) {
  return file.stats && file.stats->tp_rank && file.stats->moe && file.stats->moe->steps > 0 &&
         !file.stats->moe->expert_tokens.empty();
}

struct CloseDir {
  void operator()(DIR* dir) const { ::closedir(dir); }
};

}  // namespace

std::string_view outcome_name(StatsOutcome outcome) {
  switch (outcome) {
    case StatsOutcome::ok:
      return "ok";
    case StatsOutcome::torn:
      return "torn";
    case StatsOutcome::damaged:
      return "damaged";
    case StatsOutcome::truncated:
      return "truncated";
    case StatsOutcome::foreign:
      return "foreign";
    case StatsOutcome::newer:
      return "newer";
    case StatsOutcome::dead:
      return "dead";
    case StatsOutcome::stale:
      return "stale";
    case StatsOutcome::not_regular:
      return "not_regular";
    case StatsOutcome::too_large:
      return "too_large";
    case StatsOutcome::unreadable:
      return "unreadable";
  }
  return "?";
}

std::span<const StatsOutcome> all_outcomes() { return kOutcomes; }

StatsFile read_stats_file(const Root& root, const std::filesystem::path& path) {
  Reading reading{KDTREE_STATS_MAX_BYTES, kEveryRank, {}};
  StatsFile file = read_at(root, AT_FDCWD, path.c_str(), reading);
  file.path = path;
  return file;
}

Result<StatsDir> read_stats_dir(const Root& root, const std::filesystem::path& dir,
                                RoutingTables tables) {
  UniqueFd fd(::open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd && errno == ENOENT) return StatsDir{};
  if (!fd) return tl::make_unexpected(io_error("opening", dir, errno));
  const std::unique_ptr<DIR, CloseDir> listing(::fdopendir(::dup(fd.get())));
  if (!listing) return tl::make_unexpected(io_error("listing", dir, errno));

  std::vector<std::string> names;
  StatsDir found;
  errno = 0;
  while (const dirent* entry = ::readdir(listing.get())) {
    std::string_view name = entry->d_name;
    if (!name.ends_with(".stats") || name.front() == '.') continue;
    if (names.size() < kStatsMaxFiles)
      names.emplace_back(name);
    else
      ++found.left_out;
    errno = 0;
  }
  if (errno != 0) return tl::make_unexpected(io_error("listing", dir, errno));

  std::sort(names.begin(), names.end());
  Reading reading{kStatsMaxDirBytes, kEveryRank, {}};
  for (const std::string& name : names) {
    StatsFile file = read_at(root, fd.get(), name.c_str(), reading);
    if (file.outcome == StatsOutcome::unreadable &&
        ::faccessat(fd.get(), name.c_str(), F_OK, AT_SYMLINK_NOFOLLOW) != 0)
      continue;  // it went away after the listing
    if (tables == RoutingTables::of_lowest_rank && counts_routing(file))
      reading.last_rank_with_tables = *file.stats->tp_rank;
    file.path = dir / name;
    found.files.push_back(std::move(file));
  }
  return found;
}

}  // namespace kdtree
