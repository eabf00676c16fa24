// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "agent/stats/control_file.h"
#include "agent/util/file.h"

namespace kdtree {
namespace {

namespace fs = std::filesystem;

class ControlFile : public testing::Test {
 protected:
  ControlFile() {
    char name[] = "/tmp/kdtree-control-XXXXXX";
    root_ = Root(::mkdtemp(name));
    fs::create_directories(root_(paths::kRun));
  }
  ~ControlFile() override { fs::remove_all(root_.prefix()); }
  fs::path path() const { return root_(paths::kControl); }
  Root root_;
};

TEST_F(ControlFile, NoFileIsNoError) {
  const auto control = read_control(root_);
  ASSERT_TRUE(control);
  EXPECT_FALSE(*control);
}

TEST_F(ControlFile, ReadsWhatWasWritten) {
  const auto written = write_control(root_, Mode::validate, "r7");
  ASSERT_TRUE(written);
  const auto control = read_control(root_);
  ASSERT_TRUE(control && *control);
  EXPECT_EQ((*control)->mode, Mode::validate);
  EXPECT_EQ((*control)->release_id, "r7");
  EXPECT_EQ((*control)->generation, written->generation);
  struct stat info {};
  ASSERT_EQ(::stat(path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0644u);
  EXPECT_EQ(info.st_size, 96);
}

TEST_F(ControlFile, GenerationsGrowEvenOverADamagedFile) {
  const auto first = write_control(root_, Mode::off, "");
  const auto second = write_control(root_, Mode::on, "");
  EXPECT_GT(second->generation, first->generation);
  std::ofstream(path()) << "damaged";
  EXPECT_GE(write_control(root_, Mode::off, "")->generation, first->generation);
}

TEST_F(ControlFile, EveryChangedByteIsNoticed) {
  ASSERT_TRUE(write_control(root_, Mode::on, "r1"));
  const std::string whole = read_file(path()).value();
  for (std::size_t at = 0; at < 92; ++at) {  // the last four are reserved
    std::string bent = whole;
    bent[at] = static_cast<char>(bent[at] ^ 1);
    std::ofstream(path(), std::ios::binary) << bent;
    const auto control = read_control(root_);
    EXPECT_FALSE(control) << at;
    EXPECT_FALSE(control.error().hint.empty());
  }
}

TEST_F(ControlFile, RefusesOtherSizesAndLinks) {
  std::ofstream(path()) << std::string(95, 'x');
  EXPECT_FALSE(read_control(root_));
  fs::remove(path());
  fs::create_symlink("/etc/passwd", path());
  EXPECT_FALSE(read_control(root_));
}

TEST_F(ControlFile, RefusesAReleaseIdThatDoesntFit) {
  EXPECT_TRUE(write_control(root_, Mode::on, std::string(63, 'r')));
  const auto written = write_control(root_, Mode::on, std::string(64, 'r'));
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code, ExitCode::refused);
}

}  // namespace
}  // namespace kdtree
