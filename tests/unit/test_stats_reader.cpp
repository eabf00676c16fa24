// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "agent/stats/stats_reader.h"
#include "tests/unit/stats_image.h"

namespace kdtree {
namespace {

namespace fs = std::filesystem;

class StatsReader : public testing::Test {
 protected:
  StatsReader() {
    char name[] = "/tmp/kdtree-stats-XXXXXX";
    dir_ = ::mkdtemp(name);
  }
  ~StatsReader() override { fs::remove_all(dir_); }

  fs::path write(const std::string& name, const std::vector<std::byte>& bytes) {
    fs::path path = dir_ / name;
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
    return path;
  }
  StatsFile read(const std::vector<std::byte>& bytes) {
    return read_stats_file(root_, write("1.stats", bytes));
  }
  StatsFile read(const StatsImage& image) { return read(image.bytes()); }

  Root root_;
  fs::path dir_;
};

TEST_F(StatsReader, DecodesWhatWasPublished) {
  StatsImage image(3);
  auto& h = image.header;
  image.text(h.release_id, "r1");
  image.text(h.engine_version, "0.5.17");
  image.text(h.reason, "why");
  h.mode = KDTREE_MODE_VALIDATE;
  h.control_generation = 77;
  h.sort_state = 1;
  h.graphs = 1;
  h.calls_kernel = 5;
  h.calls_engine = 6;
  h.handed_back[KDTREE_BACK_MASK] = 7;
  h.handed_back[31] = 1;
  h.compares = 1000;
  h.mismatches = 2;
  h.max_abs = 0.25;
  h.max_ulp = 1.5;
  h.sum_mean_ulp = 0.5;
  h.max_mean_ulp = 0.25;
  h.longest_prefix = 65536;
  h.worst_layer = 60;
  h.worst_head = 3;
  h.worst_batch = 4;
  h.worst_prefix = 4096;
  h.start_mode = KDTREE_MODE_ON;
  h.kv_pairs = 10;
  h.kv_contiguous_pairs = 4;
  h.batch_count = 2;
  h.batches[0] = {1, 0, 900, 950};
  h.batches[1] = {4, 0, 100, 120};
  h.moe_ep_size = 2;
  h.moe_layers = 2;
  h.moe_experts = 4;
  h.moe_top_k = 2;
  h.moe_first_layer = 1;
  h.moe_steps = 9;
  h.moe_tokens = 18;
  image.add_section(KDTREE_SECTION_EXPERT_TOKENS, 2, 4, {1, 2, 3, 4, 5, 6, 7, 8});
  image.add_section(KDTREE_SECTION_UNIQUE_EXPERTS, 2, 1, {11, 12});
  image.add_section(KDTREE_SECTION_LAYER_STEPS, 2, 1, {9, 9});
  image.add_section(KDTREE_SECTION_IDLE_RANKS, 2, 2, {1, 0, 0, 2});
  image.add_section(KDTREE_SECTION_PEAKS, 2, 1, {13, 14});
  image.add_section(KDTREE_SECTION_STRAGGLERS, 2, 2, {5, 6, 7, 8});
  image.add_section(KDTREE_SECTION_PASS_ROWS, 3, 2, {2, 9, 0, 0, 0, 0});
  image.add_section(4711, 1, 1, {99});

  const StatsFile file = read(image);
  ASSERT_EQ(outcome_name(file.outcome), "ok") << file.detail;
  const RankStats& stats = *file.stats;
  EXPECT_EQ(stats.pid, ::getpid());
  EXPECT_EQ(stats.tp_rank, 3);
  EXPECT_EQ(stats.release_id, "r1");
  EXPECT_EQ(stats.engine_version, "0.5.17");
  EXPECT_EQ(stats.reason, "why");
  EXPECT_EQ(stats.patch_state, PatchState::active);
  EXPECT_EQ(stats.mode, Mode::validate);
  EXPECT_EQ(stats.control_generation, 77u);
  EXPECT_EQ(stats.sort_state, SortState::confirmed);
  EXPECT_EQ(stats.graphs, true);
  EXPECT_EQ(stats.handed_back[KDTREE_BACK_MASK], 7u);
  EXPECT_EQ(stats.handed_back_total(), 8u);
  EXPECT_EQ(stats.max_abs, 0.25);
  EXPECT_EQ(stats.max_ulp, 1.5);
  EXPECT_EQ(stats.max_mean_ulp, 0.25);
  EXPECT_EQ(stats.longest_prefix, 65536u);
  EXPECT_EQ(stats.worst_layer, 60);
  EXPECT_FALSE(stats.worst_request);
  ASSERT_EQ(stats.batches.size(), 2u);
  EXPECT_EQ(stats.batches[1].batch, 4u);
  EXPECT_EQ(stats.batches[1].compares, 100u);
  EXPECT_EQ(stats.batches[1].calls, 120u);
  EXPECT_EQ(stats.start_mode, Mode::on);
  EXPECT_EQ(stats.worst_head, 3);
  EXPECT_EQ(stats.worst_batch, 4);
  EXPECT_EQ(stats.worst_prefix, 4096u);
  ASSERT_TRUE(stats.moe);
  EXPECT_EQ(stats.moe->expert_tokens, (std::vector<std::uint64_t>{1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(stats.moe->unique_experts, (std::vector<std::uint64_t>{11, 12}));
  EXPECT_EQ(stats.moe->step_ranks, 2u);
  EXPECT_EQ(stats.moe->idle_ranks, (std::vector<std::uint64_t>{1, 0, 0, 2}));
  EXPECT_EQ(stats.moe->peaks, (std::vector<std::uint64_t>{13, 14}));
  EXPECT_EQ(stats.moe->stragglers, (std::vector<std::uint64_t>{5, 6, 7, 8}));
  EXPECT_EQ(stats.moe->pass_rows, (std::vector<std::uint64_t>{2, 9, 0, 0, 0, 0}));
  EXPECT_EQ(stats.moe->first_layer, 1u);
}

TEST_F(StatsReader, UnknownIsNotZero) {
  StatsImage image(-1);
  const StatsFile file = read(image);
  ASSERT_TRUE(file.stats) << file.detail;
  EXPECT_FALSE(file.stats->is_rank());
  EXPECT_FALSE(file.stats->max_abs);
  EXPECT_FALSE(file.stats->max_ulp);
  EXPECT_FALSE(file.stats->max_mean_ulp);
  EXPECT_FALSE(file.stats->graphs);
  EXPECT_FALSE(file.stats->moe);
  EXPECT_EQ(file.stats->sort_state, SortState::unknown);
}

struct Bent {
  const char* name;
  StatsOutcome outcome;
  void (*bend)(StatsImage&);
};

class StatsReaderBent : public StatsReader, public testing::WithParamInterface<Bent> {};

TEST_P(StatsReaderBent, IsToldApartAndShowsNothing) {
  StatsImage image;
  GetParam().bend(image);
  const StatsFile file = read(image);
  EXPECT_EQ(outcome_name(file.outcome), outcome_name(GetParam().outcome)) << file.detail;
  EXPECT_FALSE(file.stats);
  EXPECT_FALSE(file.detail.empty());
}

INSTANTIATE_TEST_SUITE_P(
    Each, StatsReaderBent,
    testing::Values(
        Bent{"odd_sequence", StatsOutcome::torn, [](StatsImage& i) { i.header.sequence = 3; }},
        Bent{"never_written", StatsOutcome::torn, [](StatsImage& i) { i.header.sequence = 0; }},
        Bent{"magic", StatsOutcome::foreign, [](StatsImage& i) { i.header.magic[0] = 'X'; }},
        Bent{"newer", StatsOutcome::newer, [](StatsImage& i) { i.header.version = 1; }},
        Bent{"shorter_than_said", StatsOutcome::truncated,
             [](StatsImage& i) { i.header.file_bytes = 5000; }},
        Bent{"longer_than_said", StatsOutcome::damaged,
             [](StatsImage& i) {
               i.header.file_bytes = 4096;
               i.tables = {1};
             }},
        Bent{"header_bytes", StatsOutcome::damaged,
             [](StatsImage& i) { i.header.header_bytes = 4095; }},
        Bent{"patch_state", StatsOutcome::damaged, [](StatsImage& i) { i.header.patch_state = 3; }},
        Bent{"mode", StatsOutcome::damaged, [](StatsImage& i) { i.header.mode = 3; }},
        Bent{"batch_count", StatsOutcome::damaged,
             [](StatsImage& i) { i.header.batch_count = 49; }},
        Bent{"section_count", StatsOutcome::damaged,
             [](StatsImage& i) { i.header.section_count = 17; }},
        Bent{"section_outside", StatsOutcome::damaged,
             [](StatsImage& i) {
               i.add_section(1, 1, 1, {1});
               i.header.sections[0].rows = 2;
             }},
        Bent{"section_huge", StatsOutcome::damaged,
             [](StatsImage& i) {
               i.add_section(9, 1, 1, {1});
               i.header.sections[0].rows = i.header.sections[0].cols = ~0u;
             }},
        Bent{"section_in_header", StatsOutcome::damaged,
             [](StatsImage& i) {
               i.add_section(9, 1, 1, {1});
               i.header.sections[0].offset = 8;
             }},
        Bent{"section_offset_odd", StatsOutcome::damaged,
             [](StatsImage& i) {
               i.add_section(9, 1, 1, {1});
               i.header.sections[0].offset += 1;
             }},
        Bent{"section_offset_huge", StatsOutcome::damaged,
             [](StatsImage& i) {
               i.add_section(9, 1, 1, {1});
               i.header.sections[0].offset = ~0ull - 7;
             }},
        Bent{"section_shape", StatsOutcome::damaged,
             [](StatsImage& i) {
               i.header.moe_layers = 2;
               i.header.moe_experts = 2;
               i.add_section(1, 1, 2, {1, 2});
             }},
        Bent{"contiguous_over_pairs", StatsOutcome::damaged,
             [](StatsImage& i) { i.header.kv_contiguous_pairs = 1; }},
        Bent{"pid_zero", StatsOutcome::damaged, [](StatsImage& i) { i.header.pid = 0; }},
        Bent{"time_huge", StatsOutcome::damaged,
             [](StatsImage& i) { i.header.updated_boottime_ns = ~0ull; }},
        Bent{"from_the_future", StatsOutcome::damaged,
             [](StatsImage& i) { i.header.updated_boottime_ns += 3'600'000'000'000; }},
        Bent{"another_boot", StatsOutcome::dead,
             [](StatsImage& i) {
               i.header.boot_id[0] ^= 1;
               ++i.header.pid_start_ticks;
             }},
        Bent{"another_process", StatsOutcome::dead,
             [](StatsImage& i) { ++i.header.pid_start_ticks; }},
        Bent{"no_process", StatsOutcome::dead, [](StatsImage& i) { i.header.pid = INT32_MAX; }},
        Bent{"silent", StatsOutcome::stale,
             [](StatsImage& i) { i.header.updated_boottime_ns -= 10'100'000'000; }}),
    [](const auto& bent) { return bent.param.name; });

TEST_F(StatsReader, OverlappingSectionsAreDamage) {
  StatsImage image;
  image.add_section(9, 1, 600, std::vector<std::uint64_t>(600));
  for (std::uint32_t i = 1; i < 4; ++i) image.header.sections[i] = image.header.sections[0];
  image.header.section_count = 4;
  EXPECT_EQ(outcome_name(read(image).outcome), "damaged");
}

// A container's hardened services see another boot id than its shell does.
TEST_F(StatsReader, ALivingWriterUnderAnotherBootIdIsAlive) {
  StatsImage image;
  image.header.boot_id[0] ^= 1;
  EXPECT_EQ(outcome_name(read(image).outcome), "ok");
}

TEST_F(StatsReader, AWrongChecksumIsDamage) {
  auto bytes = StatsImage().bytes();
  bytes[1000] ^= std::byte{1};
  EXPECT_EQ(outcome_name(read(bytes).outcome), "damaged");
}

TEST_F(StatsReader, AFreshFileOfZerosIsTornAndNotForeign) {
  EXPECT_EQ(outcome_name(read(std::vector<std::byte>(4096)).outcome), "torn");
}

TEST_F(StatsReader, TruncatedAtEveryLength) {
  auto bytes = StatsImage().bytes();
  for (std::size_t length : {0ul, 1ul, 7ul, 8ul, 39ul, 40ul, 4095ul}) {
    const auto cut =
        std::vector<std::byte>(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(length));
    EXPECT_EQ(outcome_name(read(cut).outcome), "truncated") << length;
  }
}

TEST_F(StatsReader, AWriterThatIsGoneIsNamedAndShowsNothing) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  StatsImage image(5);
  image.header.pid = static_cast<std::uint64_t>(child);
  const StatsFile file = read(image);
  EXPECT_EQ(outcome_name(file.outcome), "dead");
  EXPECT_FALSE(file.stats);
  ASSERT_TRUE(file.writer);
  EXPECT_EQ(file.writer->tp_rank, 5);
}

TEST_F(StatsReader, ThingsThatAreNoFilesNeitherBlockNorCrash) {
  const fs::path target = write("target.stats", StatsImage().bytes());
  fs::create_symlink(target, dir_ / "link.stats");
  ::mkfifo((dir_ / "pipe.stats").c_str(), 0644);
  fs::create_directory(dir_ / "folder.stats");
  const int listener = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::snprintf(address.sun_path, sizeof address.sun_path, "%s/socket.stats", dir_.c_str());
  ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  for (const char* name : {"link.stats", "pipe.stats", "folder.stats", "socket.stats"})
    EXPECT_EQ(outcome_name(read_stats_file(root_, dir_ / name).outcome), "not_regular") << name;
  EXPECT_EQ(outcome_name(read_stats_file(root_, "/dev/zero").outcome), "not_regular");
  EXPECT_EQ(outcome_name(read_stats_file(root_, dir_ / "missing.stats").outcome), "unreadable");
  ::close(listener);
}

TEST_F(StatsReader, AFileOfAnySizeIsBounded) {
  const fs::path path = write("1.stats", StatsImage().bytes());
  fs::resize_file(path, 1ull << 40);
  EXPECT_EQ(outcome_name(read_stats_file(root_, path).outcome), "too_large");
}

TEST_F(StatsReader, AFolderIsListedSortedAndOnlyStatsFiles) {
  write("20.stats", StatsImage(1).bytes());
  write("10.stats", StatsImage(0).bytes());
  write("10.stats.new", StatsImage(0).bytes());
  write("readme", {});
  write("30.stats", std::vector<std::byte>(7));
  const auto dir = read_stats_dir(root_, dir_);
  ASSERT_TRUE(dir);
  ASSERT_EQ(dir->files.size(), 3u);
  EXPECT_EQ(dir->files[0].path.filename(), "10.stats");
  EXPECT_EQ(dir->files[1].stats->tp_rank, 1);
  EXPECT_EQ(outcome_name(dir->files[2].outcome), "truncated");
}

TEST_F(StatsReader, AFolderIsBoundedInNumberAndBytes) {
  for (std::size_t i = 0; i < kStatsMaxFiles + 3; ++i) write(std::to_string(i) + ".stats", {});
  EXPECT_EQ(read_stats_dir(root_, dir_)->left_out, 3u);

  const fs::path many = dir_ / "many";
  fs::create_directory(many);
  StatsImage image;
  image.tables.resize(15u << 17);  // 15 MiB
  for (int i = 0; i < 6; ++i) write("many/" + std::to_string(i) + ".stats", image.bytes());
  const auto dir = read_stats_dir(root_, many);
  ASSERT_EQ(dir->files.size(), 6u);
  EXPECT_EQ(outcome_name(dir->files[3].outcome), "ok");
  EXPECT_EQ(outcome_name(dir->files[4].outcome), "too_large");
}

StatsImage routing_image(int rank, std::uint64_t steps = 1) {
  StatsImage image(rank);
  image.header.moe_layers = 1;
  image.header.moe_experts = 2;
  image.header.moe_steps = steps;
  image.add_section(KDTREE_SECTION_EXPERT_TOKENS, 1, 2, {3, 4});
  return image;
}

// In whatever order they come, and whatever comes before it that routes nothing or is dead.
TEST_F(StatsReader, TheTablesOfTheLowestRankAreThereWhenOnlyThoseAreAskedFor) {
  StatsImage gone = routing_image(0);
  gone.header.pid_start_ticks += 1;
  write("10.stats", routing_image(7).bytes());
  write("20.stats", gone.bytes());
  write("30.stats", routing_image(1, 0).bytes());
  write("40.stats", routing_image(2).bytes());
  write("50.stats", routing_image(2).bytes());
  write("60.stats", routing_image(5).bytes());
  write("70.stats", routing_image(-1).bytes());
  const std::size_t all[]{2, 0, 2, 2, 2, 2, 2};
  const std::size_t lowest[]{2, 0, 2, 2, 2, 0, 0};
  for (const auto tables : {RoutingTables::all, RoutingTables::of_lowest_rank}) {
    const auto dir = read_stats_dir(root_, dir_, tables);
    ASSERT_EQ(dir->files.size(), 7u);
    for (std::size_t i = 0; i < 7; ++i) {
      const auto& stats = dir->files[i].stats;
      EXPECT_EQ(stats.has_value(), i != 1) << i;
      EXPECT_EQ(stats ? stats->moe->expert_tokens.size() : 0,
                (tables == RoutingTables::all ? all : lowest)[i])
          << i;
    }
  }
}

TEST_F(StatsReader, ATableThatIsLeftOutIsCheckedAllTheSame) {
  StatsImage image = routing_image(3);
  image.header.sections[0].rows = 1u << 31;
  EXPECT_EQ(outcome_name(decode_stats(image.bytes(), 2).outcome), "damaged");
  EXPECT_EQ(outcome_name(decode_stats(routing_image(3).bytes(), 2).outcome), "ok");
}

TEST_F(StatsReader, AFolderThatIsntThereIsEmptyAndOneThatIsNoFolderIsAnError) {
  EXPECT_TRUE(read_stats_dir(root_, dir_ / "none")->files.empty());
  write("file", {});
  EXPECT_FALSE(read_stats_dir(root_, dir_ / "file"));
  fs::create_directory_symlink(dir_, dir_ / "link");
  EXPECT_FALSE(read_stats_dir(root_, dir_ / "link"));
}

// Whatever bytes lie there: no crash, no read outside (asan), and never "ok" without the right
// checksum.
TEST_F(StatsReader, MutatedImagesNeverCrashIt) {
  StatsImage image;
  image.header.moe_layers = 3;
  image.header.moe_experts = 5;
  image.add_section(KDTREE_SECTION_EXPERT_TOKENS, 3, 5, std::vector<std::uint64_t>(15, 1));
  image.add_section(KDTREE_SECTION_IDLE_RANKS, 3, 2, std::vector<std::uint64_t>(6, 1));
  const auto whole = image.bytes();
  std::mt19937_64 random(20261129);
  for (int round = 0; round < 20'000; ++round) {
    auto bytes = whole;
    const auto changes = 1 + random() % 8;
    // Half of the changes go to the sections' table, where offsets and sizes are.
    for (std::uint64_t i = 0; i < changes; ++i) {
      const auto at = random() % 2 ? random() % bytes.size() : 1264 + random() % 1288;
      bytes[at] = static_cast<std::byte>(random() % 4 ? random() : (random() % 2 ? 0xff : 0));
    }
    if (random() % 8 == 0) bytes.resize(random() % bytes.size());
    if (bytes.size() > 40 && random() % 4 != 0) StatsImage::seal(bytes);
    const StatsFile file = decode_stats(bytes);
    EXPECT_EQ(file.outcome == StatsOutcome::ok, file.stats.has_value());
    if (file.stats && file.stats->moe) {
      EXPECT_LE(file.stats->moe->expert_tokens.size() * 8, bytes.size());
    }
  }
}

TEST_F(StatsReader, SeesOnlyWholePublicationsWhileTheWriterWorks) {
  const fs::path path = write("1.stats", StatsImage().bytes());
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    StatsImage image;
    const auto put = [&](const void* from, std::size_t at, std::size_t size) {
      file.seekp(static_cast<std::streamoff>(at));
      file.write(static_cast<const char*>(from), static_cast<std::streamsize>(size));
      file.flush();
    };
    for (std::uint64_t k = 1; !stop; ++k) {
      std::uint64_t sequence = 2 * k + 1;
      put(&sequence, offsetof(kdtree_stats_header, sequence), 8);
      image.header.calls_kernel = image.header.calls_engine = image.header.compares = k;
      image.header.updated_boottime_ns = boottime_ns();
      const auto bytes = image.bytes();
      put(bytes.data() + 40, 40, bytes.size() - 40);
      put(bytes.data() + 32, 32, 4);
      ++sequence;
      put(&sequence, offsetof(kdtree_stats_header, sequence), 8);
    }
  });
  int whole = 0;
  for (int i = 0; i < 300; ++i) {
    const StatsFile file = read_stats_file(root_, path);
    ASSERT_TRUE(file.outcome == StatsOutcome::ok || file.outcome == StatsOutcome::torn)
        << file.detail;
    if (!file.stats) continue;
    ++whole;
    EXPECT_EQ(file.stats->calls_kernel, file.stats->compares);
    EXPECT_EQ(file.stats->calls_engine, file.stats->compares);
  }
  stop = true;
  writer.join();
  EXPECT_GT(whole, 0);
}

}  // namespace
}  // namespace kdtree
