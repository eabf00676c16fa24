// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "planned.h"

namespace kdtree {
namespace {

using namespace test;

TEST(Plan, FirstDeployRestartsTheEngineArmed) {
  Facts f = facts();
  f.agent_unit = TextFile{"/usr/lib/systemd/system/kdtree-agent.service", ""};
  const auto plan = planned(f, config(), wish(Verb::deploy, "r1", Mode::off));
  ASSERT_NE(find_step(plan, StepKind::write_file, kDropIn), nullptr);
  const auto* link = find_step(plan, StepKind::set_symlink, paths::kCurrent);
  ASSERT_NE(link, nullptr);
  EXPECT_EQ(link->after->symlink_target, "/opt/kdtree/releases/r1");
  EXPECT_EQ(find_step(plan, StepKind::enable_unit), nullptr) << "the recovery is static";
  EXPECT_EQ(plan.steps.back().kind, StepKind::restart_unit);
  EXPECT_TRUE(plan.restarts_engine);
  EXPECT_EQ(plan.gate, (GateExpectation{"engine.service", 2, "r1", Mode::off}));
  EXPECT_EQ(plan.undo_gate, (GateExpectation{"engine.service", 0, "", Mode::off}));
  EXPECT_TRUE(plan.fallback.empty()) << "the old state is without kdtree";
  ASSERT_EQ(plan.cleanup.size(), 2u);
  EXPECT_EQ(plan.cleanup[1].unit, "kdtree-agent.service");
  EXPECT_EQ(plan.after.good, (Deployed{"r1", Mode::off, false}));
  EXPECT_FALSE(plan.after.before);
  ASSERT_TRUE(plan.after.unit_before);
  EXPECT_EQ(plan.after.unit_before->exec_start,
            "/opt/e/bin/python3 -m sglang.launch_server --tp 2 --mem-fraction-static 0.94");
}

TEST(Plan, EachChangeKeepsTheConfigurationThatAWayBackNeeds) {
  const Config given = config(R"(, "modes": {"on": {"mem_fraction_static": 0.9}})");
  auto plan = planned(facts(), given, wish(Verb::deploy, "r1", Mode::off));
  ASSERT_TRUE(plan.after.configuration);
  const auto kept = parse_config(*plan.after.configuration, "state.json");
  ASSERT_TRUE(kept) << kept.error().what;
  EXPECT_EQ(kept->document, given.document);
  EXPECT_EQ(kept->engine.health_url, given.engine.health_url);
  EXPECT_EQ(kept->mode(Mode::on).mem_fraction_static, 0.9);

  const Deployed off{"r1", Mode::off, false};
  Facts f = deployed_facts(off, text_in(facts(), off));
  f.state = plan.after;
  EXPECT_FALSE(planned(f, given, wish(Verb::uninstall, "", Mode::off)).after.configuration);
}

Facts stopped(Facts f) {
  f.unit.state.active_state = "inactive";
  return f;
}

TEST(Plan, AStoppedEngineStaysStopped) {
  const Deployed off{"r1", Mode::off, false};
  Facts f = stopped(deployed_facts(off, text_in(facts(), off)));
  f.state.before = Deployed{"r0", Mode::off, false};
  auto cold = wish(Verb::mode, "r1", Mode::off);
  cold.target.cold = true;
  auto validate = wish(Verb::mode, "r1", Mode::validate);
  validate.restart = true;
  for (const auto& w : {validate, cold, wish(Verb::uninstall, "", Mode::off)}) {
    const auto plan = planned(f, config(), w);
    EXPECT_FALSE(plan.restarts_engine);
    EXPECT_EQ(find_step(plan, StepKind::restart_unit), nullptr);
    EXPECT_FALSE(plan.switches_live());
    EXPECT_EQ(plan.gate.unit, "");
    ASSERT_FALSE(plan.notes.empty());
    EXPECT_NE(plan.notes.back().find("stays so"), std::string::npos);
    if (w.target.none()) continue;
    EXPECT_EQ(plan.after.current, w.target);
    EXPECT_EQ(plan.after.good, off) << "nothing was tried";
  }
}

TEST(Plan, DeployStartsAStoppedEngineAndSaysSo) {
  const auto plan = planned(stopped(facts()), config(), wish(Verb::deploy, "r1", Mode::off));
  EXPECT_NE(find_step(plan, StepKind::restart_unit), nullptr);
  EXPECT_NE(plan.notes.back().find("deploy starts it"), std::string::npos);
}

TEST(Plan, AFailedEngineIsNotAStoppedOne) {
  const Deployed off{"r1", Mode::off, false};
  Facts f = deployed_facts(off, text_in(facts(), off));
  f.unit.state.active_state = "failed";
  auto w = wish(Verb::mode, "r1", Mode::off);
  w.target.cold = true;
  EXPECT_TRUE(planned(f, config(), w).restarts_engine);
}

TEST(Plan, AnotherUnitInTheConfigurationLeavesNoOrphan) {
  const Deployed off{"r1", Mode::off, false};
  Facts f = deployed_facts(off, text_in(facts(), off));
  f.state.managed[kDropIn] = "x";
  f.state.unit_before = UnitBefore{"engine.service", "", ""};
  Config other = config();
  other.engine.unit = "other.service";
  Config whole = config();
  whole.engine.command = {"/opt/e/bin/python3", "-m", "sglang.launch_server"};
  for (const auto& w : {wish(Verb::deploy, "r1", Mode::off), wish(Verb::mode, "r1", Mode::validate),
                        wish(Verb::uninstall, "", Mode::off)}) {
    const auto error = refused(f, other, w);
    EXPECT_NE(error.what.find("under engine.service"), std::string::npos) << error.what;
    EXPECT_NE(error.hint.find("set engine.unit back to engine.service"), std::string::npos);
    EXPECT_NE(refused(f, whole, w).what.find("engine.command"), std::string::npos);
  }
  f.state.managed.clear();
  f.state.current.cold = true;
  EXPECT_NE(refused(f, other, wish(Verb::mode, "r1", Mode::off)).what.find("under engine.service"),
            std::string::npos);
}

TEST(Plan, UninstallGivesTheUnitBack) {
  const Deployed on{"r1", Mode::on, false};
  Facts f = deployed_facts(on, text_in(facts(), on));
  f.agent_unit = TextFile{"/usr/lib/systemd/system/kdtree-agent.service", ""};
  auto w = wish(Verb::uninstall, "", Mode::off);
  const auto plan = planned(f, config(), w);
  EXPECT_NE(find_step(plan, StepKind::remove_file, kDropIn), nullptr);
  EXPECT_NE(find_step(plan, StepKind::remove_file, paths::kCurrent), nullptr);
  EXPECT_NE(find_step(plan, StepKind::restart_unit, "engine.service"), nullptr);
  EXPECT_EQ(plan.gate.ranks, 0);
  ASSERT_EQ(plan.cleanup.size(), 4u);
  EXPECT_EQ(plan.cleanup[2].path, "/opt/kdtree");
  EXPECT_EQ(plan.cleanup[3].path, "/run/kdtree/stats");
  EXPECT_TRUE(plan.after.current.none());
  EXPECT_FALSE(plan.after.good);
  w.keep_releases = true;
  EXPECT_EQ(planned(f, config(), w).cleanup.size(), 3u);
}

TEST(Plan, UninstallOfNothingIsNothing) {
  Facts f = facts();
  f.agent_unit = TextFile{"/usr/lib/systemd/system/kdtree-agent.service", ""};
  const auto w = wish(Verb::uninstall, "", Mode::off);
  const auto nothing = planned(f, config(), w);
  EXPECT_TRUE(nothing.empty());
  EXPECT_EQ(to_text(nothing), "nothing to do: nothing of kdtree is deployed\n");
  f.trees = {"/opt/kdtree"};  // a first deploy that failed
  const auto left = planned(f, config(), w);
  ASSERT_EQ(left.cleanup.size(), 1u) << "the agent is the package's";
  EXPECT_EQ(left.cleanup[0].path, "/opt/kdtree");
}

TEST(Plan, UninstallWorksWhereTheEngineIsGone) {
  const Deployed on{"r1", Mode::on, false};
  Facts f = deployed_facts(on, text_in(facts(), on));
  f.unit = {};
  f.unit.state.load_state = "not-found";
  const auto plan = planned(f, config(), wish(Verb::uninstall, "", Mode::off));
  EXPECT_NE(find_step(plan, StepKind::remove_file, kDropIn), nullptr);
  EXPECT_EQ(find_step(plan, StepKind::restart_unit), nullptr);
  EXPECT_EQ(plan.gate.unit, "");
}

TEST(Plan, RollbackForgetsWhereItCameFrom) {
  const Deployed on{"r2", Mode::on, false};
  Facts f = deployed_facts(on, text_in(facts(), on));
  f.state.before = Deployed{"r1", Mode::off, false};
  f.release = manifest("r1");
  const auto plan = planned(f, config(), wish(Verb::rollback, "r1", Mode::off));
  EXPECT_TRUE(plan.restarts_engine);
  EXPECT_EQ(plan.after.good, (Deployed{"r1", Mode::off, false}));
  EXPECT_FALSE(plan.after.before);
}

}  // namespace
}  // namespace kdtree
