// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "agent/util/run_as.h"
#include "agent/util/take_tree.h"
#include "agent/util/trusted_path.h"

namespace kdtree {
namespace {

namespace fs = std::filesystem;

class TrustedPath : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "kdtree-trust-XXXXXX").string();
    dir = mkdtemp(name.data());
    fs::create_directories(dir / "bin");
    put("bin/tool", "x");
  }
  void TearDown() override { fs::remove_all(dir); }
  void put(const std::string& name, const std::string& text) const {
    fs::create_directories((dir / name).parent_path());
    std::ofstream(dir / name) << text;
    ::chmod((dir / name).c_str(), 0755);
  }
  std::string text(const std::string& name) const {
    std::ostringstream out;
    out << std::ifstream(dir / name).rdbuf();
    return out.str();
  }
  // "" = trusted.
  std::string objection(const std::string& name) const {
    const auto safe = check_only_root_replaces(dir / name);
    return safe ? "" : safe.error().what;
  }
  fs::path dir;
};

TEST_F(TrustedPath, OwnAndUnwritableIsTrustedAlsoThroughLinks) {
  EXPECT_EQ(objection("bin/tool"), "");
  fs::create_symlink("bin/tool", dir / "relative");
  fs::create_symlink(dir / "relative", dir / "absolute");
  EXPECT_EQ(objection("absolute"), "");
  EXPECT_NE(objection("missing"), "");
  fs::create_symlink("loop", dir / "loop");
  EXPECT_NE(objection("loop"), "");
}

TEST_F(TrustedPath, WhatOthersCanWriteIsNamed) {
  ::chmod((dir / "bin/tool").c_str(), 0757);
  EXPECT_NE(objection("bin/tool").find("bin/tool can be written"), std::string::npos);
  ::chmod((dir / "bin/tool").c_str(), 0755);
  ::chmod((dir / "bin").c_str(), 0777);
  EXPECT_NE(objection("bin/tool").find("through " + (dir / "bin").string()), std::string::npos);
  ::chmod((dir / "bin").c_str(), 01777);
  EXPECT_EQ(objection("bin/tool"), "") << "with the sticky bit nobody else can move it away";
}

TEST_F(TrustedPath, WhatIsBehindALinkCountsToo) {
  put("elsewhere/real", "x");
  fs::create_symlink("../elsewhere/real", dir / "bin/link");
  EXPECT_EQ(objection("bin/link"), "");
  ::chmod((dir / "elsewhere").c_str(), 0777);
  EXPECT_NE(objection("bin/link").find("elsewhere"), std::string::npos);
}

TEST_F(TrustedPath, AnotherOwnerIsNamed) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to give a file away";
  ASSERT_EQ(::chown((dir / "bin").c_str(), 1, 1), 0);
  EXPECT_NE(objection("bin/tool").find("belongs to"), std::string::npos) << objection("bin/tool");
}

TEST_F(TrustedPath, TakingATreeCopiesPlainFilesAndTheirExecuteBits) {
  put("from/lib/x.so", "x");
  put("from/a.py", "y");
  ::chmod((dir / "from/a.py").c_str(), 0600);
  const auto old_umask = ::umask(0077);
  const auto taken = take_tree(dir / "from", dir / "to");
  ::umask(old_umask);
  ASSERT_TRUE(taken) << taken.error().what;
  EXPECT_EQ(text("to/lib/x.so"), "x");
  EXPECT_EQ(fs::status(dir / "to/lib").permissions(), fs::perms(0755));
  EXPECT_EQ(fs::status(dir / "to/lib/x.so").permissions(), fs::perms(0755));
  EXPECT_EQ(fs::status(dir / "to/a.py").permissions(), fs::perms(0644));
}

TEST_F(TrustedPath, TakingATreeRefusesLinksOfBothKindsAndPipes) {
  put("secret", "root's");
  for (const char* kind : {"soft", "folder", "hard", "pipe"}) {
    fs::remove_all(dir / "from");
    fs::remove_all(dir / "to");
    fs::create_directories(dir / "from");
    const std::string what = kind;
    if (what == "soft") fs::create_symlink(dir / "secret", dir / "from/x");
    if (what == "folder") fs::create_directory_symlink(dir / "bin", dir / "from/x");
    if (what == "hard") fs::create_hard_link(dir / "secret", dir / "from/x");
    if (what == "pipe") {
      ASSERT_EQ(::mkfifo((dir / "from/x").c_str(), 0600), 0);
    }
    EXPECT_FALSE(take_tree(dir / "from", dir / "to")) << what;
    EXPECT_FALSE(fs::exists(dir / "to/x")) << what;
  }
}

TEST(RunAs, IsForRootAndAnotherUserOnly) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  EXPECT_FALSE(run_as("", "").value());
  EXPECT_FALSE(run_as("root", "").value());
  EXPECT_FALSE(run_as("0", "").value());
  const auto daemon = run_as("1", "").value();
  ASSERT_TRUE(daemon);
  EXPECT_EQ(daemon->uid, 1u);
  EXPECT_EQ(daemon->prefix().at(1), "--reuid=1");
  EXPECT_EQ(run_as("1", "0").value()->gid, 0u);
  EXPECT_FALSE(run_as("no-such-user", ""));
  EXPECT_FALSE(run_as("1", "no-such-group"));
}

}  // namespace
}  // namespace kdtree
