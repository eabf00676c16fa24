// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>

#include "agent/cli/hand_made.h"
#include "agent/cli/live_process.h"
#include "agent/util/sha256.h"
#include "plan_host.h"

namespace kdtree {
namespace {

using namespace test;

class HandMadeHost : public ::testing::Test {
 protected:
  std::vector<HandMade> found() const { return find_hand_made(folder.root(), unit, "/site"); }
  PlanFolder folder;
  EngineUnitFacts unit;
};

TEST_F(HandMadeHost, ACleanHostHasNothing) {
  folder.write("site/sglang/srt/layers/attention/triton_backend.py",
               "class TritonAttnBackend: ...");
  folder.write("site/distutils-precedence.pth", "import os\n");
  EXPECT_TRUE(found().empty());
  EXPECT_TRUE(other_hooks(folder.root(), unit.state, "/site").empty());
}

TEST_F(HandMadeHost, AHookThatReachesIntoTheEngineDoubles) {
  unit.state.environment = {{"PYTHONPATH", "/opt/kdtree/releases/r1/python:/theirs:/more"}};
  folder.write("opt/kdtree/releases/r1/python/sitecustomize.py", "import kdtree_patch");
  folder.write("theirs/sitecustomize.py", "import coverage\n");
  EXPECT_TRUE(found().empty()) << "another one is chained to";
  EXPECT_EQ(other_hooks(folder.root(), unit.state, ""),
            std::vector<std::string>{"/theirs/sitecustomize.py"});
  folder.write("more/usercustomize.py", "from sglang.srt import x\n");
  ASSERT_EQ(found().size(), 1u);
  EXPECT_TRUE(found()[0].doubles);
  EXPECT_NE(found()[0].what.find("/more/usercustomize.py"), std::string::npos);
}

TEST_F(HandMadeHost, PatchedPackagesAndPthFilesDouble) {
  folder.write("site/sglang/srt/layers/attention/triton_backend.py",
               "torch.ops.kdtree.verify_attn");
  folder.write("site/fast.pth", "import kdtree_patch; kdtree_patch.install()\n");
  const auto all = found();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_TRUE(std::ranges::all_of(all, [](const HandMade& each) { return each.doubles; }));
}

TEST_F(HandMadeHost, VariablesInTheUnitAreTakenOver) {
  unit.files = {
      {kFragment, "[Service]\nEnvironment=KDTREE_VERIFY=on\n"},
      {kDropIn, "# Written by kdtreectl for r1\n[Service]\nEnvironment=KDTREE_VERIFY=off\n"}};
  const auto all = found();
  ASSERT_EQ(all.size(), 1u) << "our own drop-in is not hand-made";
  EXPECT_FALSE(all[0].doubles);
  EXPECT_NE(all[0].what.find(kFragment), std::string::npos);
}

class LiveProcess : public ::testing::Test {
 protected:
  void SetUp() override {
    stats.pid = 77;
    stats.pid_start_ticks = 4242;
    stats.environment_sha256 = environment_digest(environ);
    write();
  }
  void write() const {
    folder.write("proc/77/stat", "77 (engine) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4242 0 0\n");
    folder.write("proc/77/environ", environ);
    folder.write("proc/77/maps", maps);
  }
  std::string drift() const { return live_drift(folder.root(), stats, "r1"); }

  PlanFolder folder;
  RankStats stats;
  std::string environ = std::string("HOME=/srv\0KDTREE_VERIFY=on\0PYTHONPATH=/p\0", 41) +
                        "KDTREE_LIB=/opt/kdtree/releases/r1/lib/libkdtree_torch.so" +
                        std::string(1, '\0');
  std::string maps =
      "7f00-7f01 r-xp 00000000 00:31 12 /usr/lib/libc.so.6\n"
      "7f02-7f03 r-xp 00000000 00:31 99     /opt/kdtree/releases/r1/lib/libkdtree_torch.so\n";
};

TEST_F(LiveProcess, NoDifferenceNoWord) { EXPECT_EQ(drift(), ""); }

TEST_F(LiveProcess, TheDigestIsThatOfThePatch) {
  EXPECT_EQ(stats.environment_sha256,
            sha256_hex("KDTREE_LIB=/opt/kdtree/releases/r1/lib/libkdtree_torch.so\n"
                       "KDTREE_VERIFY=on\nPYTHONPATH=/p\n"));
}

TEST_F(LiveProcess, AReportOfAnotherEnvironmentIsNotBelieved) {
  stats.environment_sha256 = sha256_hex("");
  EXPECT_NE(drift().find("another environment"), std::string::npos);
}

TEST_F(LiveProcess, AnEnvironmentUnderAProcessTitleSaysNothing) {
  for (const std::string& left :
       {std::string(80, '\0'), "title" + std::string(75, '\0'), std::string()}) {
    environ = left;
    write();
    EXPECT_EQ(drift(), "");
    EXPECT_NE(live_drift(folder.root(), stats, "r2").find("/r1/"), std::string::npos)
        << "the library is seen all the same";
  }
}

TEST_F(LiveProcess, AnotherReleaseOrLibraryIsSeen) {
  EXPECT_NE(live_drift(folder.root(), stats, "r2").find("KDTREE_LIB="), std::string::npos);
  maps = "7f02-7f03 r-xp 0 00:31 99 /opt/kdtree/releases/r1/lib/libkdtree_torch.so (deleted)\n";
  write();
  EXPECT_NE(drift().find("(deleted)"), std::string::npos) << drift();
  maps = "7f00-7f01 r-xp 0 00:31 12 /usr/lib/libc.so.6\n";
  write();
  EXPECT_NE(drift().find("no kernel library mapped"), std::string::npos) << drift();
}

TEST_F(LiveProcess, AnotherProcessUnderThePidSaysNothing) {
  stats.pid_start_ticks = 1;
  maps.clear();
  write();
  EXPECT_EQ(drift(), "");
  stats.pid = 78;
  EXPECT_EQ(drift(), "");
}

}  // namespace
}  // namespace kdtree
