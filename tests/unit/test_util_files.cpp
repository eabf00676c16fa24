// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "agent/util/atomic_file.h"
#include "agent/util/clock.h"
#include "agent/util/leftovers.h"
#include "agent/util/lock_file.h"
#include "agent/util/sha256.h"

namespace kdtree {
namespace {

namespace fs = std::filesystem;

class Files : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "kdtree-util-XXXXXX").string();
    dir = mkdtemp(name.data());
  }
  void TearDown() override { fs::remove_all(dir); }
  void put(const std::string& name, const std::string& text) { std::ofstream(dir / name) << text; }
  std::string text(const std::string& name) {
    std::ostringstream out;
    out << std::ifstream(dir / name).rdbuf();
    return out.str();
  }
  std::size_t entries() {
    return static_cast<std::size_t>(
        std::distance(fs::directory_iterator(dir), fs::directory_iterator()));
  }
  fs::path dir;
};

TEST_F(Files, AtomicWriteCreatesAndReplacesWithItsMode) {
  const auto old_umask = ::umask(0077);
  ASSERT_TRUE(write_file_atomic(dir / "a", "one", 0644));
  ASSERT_TRUE(write_file_atomic(dir / "a", std::string_view("t\0o", 3), 0640));
  ::umask(old_umask);
  EXPECT_EQ(text("a"), std::string("t\0o", 3));
  struct stat info {};
  ASSERT_EQ(::stat((dir / "a").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0640u);
  EXPECT_EQ(entries(), 1u) << "no temp file is left";
}

TEST_F(Files, AtomicWriteReplacesASymlinkAndNotItsTarget) {
  put("target", "keep");
  fs::create_symlink(dir / "target", dir / "link");
  ASSERT_TRUE(write_file_atomic(dir / "link", "new"));
  EXPECT_EQ(text("target"), "keep");
  EXPECT_FALSE(fs::is_symlink(dir / "link"));
}

TEST_F(Files, AtomicWriteFailsWhole) {
  const auto status = write_file_atomic(dir / "missing/a", "x");
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().what.find("No such file"), std::string::npos);
  fs::create_directory(dir / "d");
  EXPECT_FALSE(write_file_atomic(dir / "d", "x")) << "a folder is in the way";
  EXPECT_EQ(entries(), 1u);
}

TEST_F(Files, ImagesComeBack) {
  put("f", "bytes");
  ::chmod((dir / "f").c_str(), 0600);
  fs::create_symlink("elsewhere", dir / "l");
  const auto file = read_image(dir / "f").value();
  const auto link = read_image(dir / "l").value();
  ASSERT_TRUE(file && link);
  EXPECT_EQ(link->symlink_target, "elsewhere");
  EXPECT_FALSE(read_image(dir / "none").value());
  ASSERT_TRUE(restore_image(dir / "f2", *file));
  ASSERT_TRUE(restore_image(dir / "l2", *link));
  EXPECT_EQ(read_image(dir / "f2").value(), file);
  EXPECT_EQ(read_image(dir / "l2").value(), link);
}

TEST_F(Files, AttributesComeBackWithTheImage) {
  put("f", "bytes");
  if (::setxattr((dir / "f").c_str(), "user.kdtree", "a\0b", 3, 0) != 0)
    GTEST_SKIP() << "no extended attributes here";
  const auto image = read_image(dir / "f").value();
  ASSERT_TRUE(image);
  EXPECT_EQ(image->attributes.xattrs.at("user.kdtree"), std::string("a\0b", 3));
  ASSERT_TRUE(remove_file(dir / "f"));
  ASSERT_TRUE(restore_image(dir / "f", *image));
  EXPECT_EQ(read_image(dir / "f").value(), image);
}

TEST_F(Files, ExchangeIsOneStepOrAMove) {
  ASSERT_TRUE(make_directories(dir / "new"));
  put("new/x", "1");
  ASSERT_TRUE(exchange_durably(dir / "new", dir / "place"));
  EXPECT_FALSE(fs::exists(dir / "new"));
  ASSERT_TRUE(make_directories(dir / "newer"));
  put("newer/x", "2");
  ASSERT_TRUE(exchange_durably(dir / "newer", dir / "place"));
  EXPECT_EQ(text("place/x"), "2");
  EXPECT_EQ(text("newer/x"), "1");
}

TEST_F(Files, ReadingRefusesWhatIsNoPlainFile) {
  put("f", "12345");
  fs::create_symlink(dir / "f", dir / "l");
  ASSERT_EQ(::mkfifo((dir / "p").c_str(), 0600), 0);
  EXPECT_EQ(read_file(dir / "f").value(), "12345");
  EXPECT_EQ(read_file(dir / "f", 5).value(), "12345");
  EXPECT_NE(read_file(dir / "f", 4).error().what.find("larger than 4"), std::string::npos);
  EXPECT_NE(read_file(dir / "l").error().what.find("symlink"), std::string::npos);
  EXPECT_NE(read_file(dir / "p").error().what.find("not a regular file"), std::string::npos);
  EXPECT_NE(read_file(dir).error().what.find("not a regular file"), std::string::npos);
  EXPECT_FALSE(read_file(dir / "none"));
  EXPECT_FALSE(read_file_if_there(dir / "none").value());
  EXPECT_FALSE(read_file_if_there(dir / "f/none").value());
}

TEST_F(Files, DirectoriesAreMadeReadableAndLinksRefused) {
  const auto old_umask = ::umask(0077);
  ASSERT_TRUE(make_directories(dir / "a/b/c"));
  ::umask(old_umask);
  EXPECT_EQ(fs::status(dir / "a/b").permissions(), fs::perms(0755));
  ASSERT_TRUE(make_directories(dir / "a/b/c"));
  fs::create_directory_symlink(dir / "a", dir / "link");
  EXPECT_FALSE(make_directories(dir / "link"));
  put("file", "");
  EXPECT_FALSE(make_directories(dir / "file"));
}

TEST_F(Files, MoveNeverOverwrites) {
  put("a", "a");
  put("b", "b");
  EXPECT_FALSE(move_durably(dir / "a", dir / "b"));
  EXPECT_EQ(text("b"), "b");
  EXPECT_TRUE(move_durably(dir / "a", dir / "c"));
  EXPECT_EQ(text("c"), "a");
}

TEST_F(Files, DigestsAreThoseOfSha256) {
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  put("f", "abc");
  EXPECT_EQ(sha256_file(dir / "f").value(), sha256_hex("abc"));
  ASSERT_TRUE(make_directories(dir / "t/u"));
  put("t/u/x", "abc");
  put("t/y", "");
  const auto tree = sha256_tree(dir / "t").value();
  EXPECT_EQ(tree.size(), 2u);
  EXPECT_EQ(tree.at("u/x"), sha256_hex("abc"));
  fs::create_symlink("y", dir / "t/l");
  EXPECT_FALSE(sha256_tree(dir / "t"));
}

TEST_F(Files, LockIsHeldByOneAndGoesWithItsHolder) {
  const Root root(dir);
  int ready[2], done[2];
  ASSERT_EQ(::pipe(ready), 0);
  ASSERT_EQ(::pipe(done), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    auto lock = LockFile::acquire(root, "deploy");
    char byte = lock ? 'y' : 'n';
    if (::write(ready[1], &byte, 1) != 1 || ::read(done[0], &byte, 1) != 1) ::_exit(1);
    ::kill(::getpid(), SIGKILL);
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  ASSERT_EQ(byte, 'y');
  const auto holder = LockFile::holder(root);
  ASSERT_TRUE(holder);
  EXPECT_TRUE(holder->starts_with("kdtreectl deploy (pid " + std::to_string(child) + ", since "));
  auto second = LockFile::acquire(root, "mode");
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ExitCode::locked);
  EXPECT_NE(second.error().what.find("kdtreectl deploy (pid " + std::to_string(child)),
            std::string::npos)
      << second.error().what;
  ASSERT_EQ(::write(done[1], &byte, 1), 1);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(LockFile::holder(root).value(), "");
  EXPECT_TRUE(LockFile::acquire(root, "mode")) << "killed holders leave nothing to clear";
}

TEST_F(Files, LockNamesNobodyWhoIsGone) {
  const Root root(dir);
  ASSERT_TRUE(make_directories(root(paths::kRun)));
  put("run/kdtree/lock", "deploy 4194303 1 " + boot_id() + " 2026-01-01T00:00:00Z\n");
  const int fd = ::open(root(fs::path(paths::kRun) / "lock").c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(::flock(fd, LOCK_EX), 0);
  const auto second = LockFile::acquire(root, "mode");
  ::close(fd);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ExitCode::locked);
  EXPECT_EQ(second.error().what.find("4194303"), std::string::npos) << second.error().what;
}

// A number may be another process's by now: the owner is who has pid, start time and boot in
// common.
TEST_F(Files, LockNamesNobodyWhoOnlyHasTheNumber) {
  const Root root(dir);
  ASSERT_TRUE(make_directories(root(paths::kRun)));
  const std::string pid = std::to_string(::getpid());
  const auto start = process_start_ticks(::getpid());
  ASSERT_TRUE(start);
  const auto said = [&](const std::string& start_ticks, const std::string& boot) {
    put("run/kdtree/lock",
        "deploy " + pid + " " + start_ticks + " " + boot + " 2026-01-01T00:00:00Z\n");
    const int fd = ::open(root(fs::path(paths::kRun) / "lock").c_str(), O_RDWR | O_CLOEXEC);
    EXPECT_EQ(::flock(fd, LOCK_EX), 0);
    const auto second = LockFile::acquire(root, "mode");
    ::close(fd);
    return second ? std::string("taken") : second.error().what;
  };
  EXPECT_NE(said(std::to_string(*start), boot_id()).find(pid), std::string::npos);
  EXPECT_EQ(said(std::to_string(*start + 1), boot_id()).find(pid), std::string::npos);
  EXPECT_EQ(said(std::to_string(*start), "00000000-0000-0000-0000-000000000000").find(pid),
            std::string::npos);
}

TEST_F(Files, AskingForTheHolderMakesNothing) {
  EXPECT_EQ(LockFile::holder(Root(dir)).value(), "");
  EXPECT_FALSE(fs::exists(Root(dir)(paths::kRun)));
}

TEST_F(Files, LockRefusesAPlantedLink) {
  const Root root(dir);
  ASSERT_TRUE(make_directories(root(paths::kRun)));
  put("victim", "text");
  fs::create_symlink(dir / "victim", root(paths::kRun) / "lock");
  const auto lock = LockFile::acquire(root, "mode");
  ASSERT_FALSE(lock);
  EXPECT_EQ(lock.error().code, ExitCode::refused);
  EXPECT_EQ(text("victim"), "text");
}

TEST(Clock, KnowsThisProcess) {
  EXPECT_GT(process_start_ticks(::getpid()).value_or(0), 0u);
  EXPECT_FALSE(process_start_ticks(0x3ffffff));
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  siginfo_t ended{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT), 0);
  EXPECT_FALSE(process_start_ticks(child)) << "it is a zombie";
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(boot_id().size(), 36u);
  EXPECT_EQ(utc_now().size(), 20u);
}

TEST_F(Files, LeftoversOfAKilledChangeGoAndNothingElse) {
  const std::string units = "etc/systemd/system/";
  const std::vector<std::string> stale = {
      "var/lib/kdtree/.state.json.kdtree-12", "var/lib/kdtree/evidence/.x.txt.kdtree-108",
      units + "x.service.d/.60-kdtree.conf.kdtree-4194304", units + ".x.service.kdtree-7",
      "opt/kdtree/releases/.staging-abc/release/lib.so"};
  const std::vector<std::string> kept = {"var/lib/kdtree/state.json",
                                         units + "x.service.d/60-kdtree.conf",
                                         units + "x.service.d/.60-kdtree.conf.kdtree-12a",
                                         units + "x.service.d/.kdtree-12",
                                         "opt/kdtree/releases/abc/lib.so",
                                         "elsewhere/.state.json.kdtree-12"};
  for (const auto& path : stale) {
    fs::create_directories((dir / path).parent_path());
    put(path, "half");
  }
  for (const auto& path : kept) {
    fs::create_directories((dir / path).parent_path());
    put(path, "whole");
  }
  fs::create_directory_symlink(dir / "elsewhere", dir / (units + "linked.d"));
  fs::create_symlink("/nowhere", dir / "opt/kdtree/.current.kdtree-12");
  remove_leftovers(Root(dir));
  for (const auto& path : stale) EXPECT_FALSE(fs::exists(dir / path)) << path;
  for (const auto& path : kept) EXPECT_TRUE(fs::exists(dir / path)) << path;
  EXPECT_FALSE(fs::is_symlink(dir / "opt/kdtree/.current.kdtree-12"));
  EXPECT_FALSE(fs::exists(dir / "opt/kdtree/releases/.staging-abc"));
}

}  // namespace
}  // namespace kdtree
