// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>

#include "agent/cli/drift.h"
#include "agent/util/sha256.h"
#include "plan_host.h"

namespace kdtree {
namespace {

using namespace test;

const std::string kRelease = std::string(paths::kReleases) + "/r1";

// A host on which r1 is in force in mode off; no rank is expected.
class Drift : public ::testing::Test {
 protected:
  void SetUp() override {
    facts.state.current = {"r1", Mode::off, false};
    facts.unit.name = "engine.service";
    facts.unit.active_state = "active";
    facts.unit.environment = {{"KDTREE_VERIFY", "off"},
                              {"KDTREE_LIB", kRelease + "/lib/libkdtree_torch.so"},
                              {"PYTHONPATH", kRelease + "/python:/opt/theirs"}};
    fs::create_directories(folder / "opt/kdtree");
    fs::create_symlink(kRelease, folder / "opt/kdtree/current");
  }

  std::string seen() {
    std::string text;
    for (const auto& line : find_drift(folder.root(), facts))
      text += line.kind + ": " + line.text + "\n";
    return text;
  }

  void add_file(const std::string& path, const std::string& text) {
    folder.write(path.substr(1), text);
    facts.unit.environment_files.push_back({path, false});
  }

  PlanFolder folder;
  DriftFacts facts;
};

TEST_F(Drift, NoneWhereAllIsAsItWasLeft) { EXPECT_EQ(seen(), ""); }

TEST_F(Drift, FilesThatSystemdHasNotLoaded) {
  facts.unit.need_daemon_reload = true;
  EXPECT_EQ(seen(), "reload: engine.service: its files are newer than what systemd has loaded\n");
}

TEST_F(Drift, ALaterDropInThatOverridesOurs) {
  facts.unit.environment[0].second = "on";
  EXPECT_EQ(seen(), "environment: KDTREE_VERIFY of engine.service is on, not off\n");
  facts.unit.environment[0].second = "off";
  facts.unit.environment[2].second = "/opt/theirs:" + kRelease + "/python";
  EXPECT_NE(seen().find("environment: PYTHONPATH of engine.service is /opt/theirs:"),
            std::string::npos);
}

TEST_F(Drift, AnEnvironmentFileThatOverridesOurs) {
  add_file("/etc/default/engine", "KDTREE_VERIFY=on\nHF_HOME=/srv\n");
  EXPECT_EQ(seen(),
            "environment: KDTREE_VERIFY of engine.service is on by /etc/default/engine, not off\n");
  add_file("/etc/kdtree/engine.env", "KDTREE_VERIFY=off\n");
  EXPECT_EQ(seen(), "") << "ours comes last and puts it right";
  add_file("/etc/default/last", "PYTHONPATH=/opt/theirs\nKDTREE_LIB=/opt/theirs/lib.so\n");
  const auto text = seen();
  EXPECT_NE(text.find("KDTREE_LIB of engine.service is /opt/theirs/lib.so by /etc/default/last"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("PYTHONPATH of engine.service is /opt/theirs by /etc/default/last"),
            std::string::npos)
      << text;
}

TEST_F(Drift, ANameThatSomebodyElseGaveIsOneLine) {
  StatsFile file;
  file.path = "/run/kdtree/stats/a\nkdtree_up 0\033[2J.stats";
  facts.ranks.unreadable.push_back(file);
  const auto text = seen();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
  EXPECT_EQ(text.find('\033'), std::string::npos) << text;
}

TEST_F(Drift, AnEngineThatTheReleaseWasNotMadeFor) {
  facts.release = manifest("r1");
  RankStats rank;
  rank.tp_rank = 0;
  rank.release_id = "r1";
  rank.patch_state = PatchState::active;
  rank.engine_version = "0.5.17";
  rank.engine_fingerprint = "f1";
  rank.torch_version = "2.11.0+cu130";
  facts.ranks.ranks = {{0, rank, ""}};
  EXPECT_EQ(seen(), "");
  rank.tp_rank.reset();  // it stood aside before it had a rank
  rank.patch_state = PatchState::refused;
  rank.reason = "unknown engine";
  rank.engine_version = "0.5.18";
  rank.engine_fingerprint = "f2";
  rank.torch_version = "";
  facts.ranks.others = {rank, rank};
  const auto lines = find_drift(folder.root(), facts);
  ASSERT_EQ(lines.size(), 3u) << "one of the engine, one of each process";
  EXPECT_EQ(lines[0].kind, "engine");
  EXPECT_EQ(lines[0].text,
            "it runs sglang 0.5.18 (fingerprint f2), the release was made for 0.5.17 (fingerprint "
            "f1)");
  EXPECT_NE(lines[0].next.find("kdtreectl deploy; /usr/share/kdtree/runbooks/upgrade.md"),
            std::string::npos);
}

TEST_F(Drift, ColdNothingOfOursIsSet) {
  facts.state.current.cold = true;
  EXPECT_EQ(seen(), "environment: KDTREE_VERIFY of engine.service is off, not unset\n");
  facts.unit.environment.clear();
  EXPECT_EQ(seen(), "");
}

}  // namespace
}  // namespace kdtree
