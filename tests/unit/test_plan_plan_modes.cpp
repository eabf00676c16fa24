// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "agent/util/sha256.h"
#include "planned.h"

namespace kdtree {
namespace {

using namespace test;

TEST(PlanOfModes, ModeOfArmedRanksNeedsNoRestart) {
  const Deployed off{"r1", Mode::off, false};
  const auto f = deployed_facts(off, text_in(facts(), off));
  const auto plan = planned(f, config(), wish(Verb::mode, "r1", Mode::validate));
  EXPECT_FALSE(plan.restarts_engine);
  EXPECT_EQ(find_step(plan, StepKind::restart_unit), nullptr);
  ASSERT_NE(find_step(plan, StepKind::write_file, kDropIn), nullptr);
  ASSERT_NE(find_step(plan, StepKind::daemon_reload), nullptr);
  const auto* control = find_step(plan, StepKind::write_control);
  ASSERT_NE(control, nullptr);
  EXPECT_EQ(control->mode, Mode::validate);
  EXPECT_EQ(control->mode_before, Mode::off);
  EXPECT_EQ(plan.undo_gate.mode, Mode::off);
  EXPECT_EQ(plan.undo_gate.ranks, 2);
  EXPECT_EQ(plan.after.before, off);
  EXPECT_FALSE(plan.fallback.empty());
}

TEST(PlanOfModes, AHandEditedDropInIsWrittenAgainLiveWhereItStartsTheSameEngine) {
  const Deployed off{"r1", Mode::off, false};
  const std::string ours = text_in(facts(), off);
  for (const std::string& edit :
       {ours + "# mine\n\n", "; mine\n" + ours + "[Unit]\nAfter=x.target\n",
        ours + "Environment=KDTREE_VERIFY=on\n"}) {
    Facts f = deployed_facts(off, edit);
    f.state.managed[kDropIn] = sha256_hex(ours);
    for (const Mode mode : {Mode::off, Mode::validate}) {
      const auto plan = planned(f, config(), wish(Verb::mode, "r1", mode));
      EXPECT_FALSE(plan.restarts_engine) << edit;
      EXPECT_NE(find_step(plan, StepKind::write_file, kDropIn), nullptr);
      EXPECT_TRUE(says(plan, std::string(kDropIn) +
                                 " was changed by somebody else: it is written again, without"));
      EXPECT_FALSE(says(plan, "command line"));
    }
  }
}

TEST(PlanOfModes, AnEditThatStartsAnotherEngineRestartsItAndSaysWhy) {
  const Deployed off{"r1", Mode::off, false};
  const std::string ours = text_in(facts(), off);
  Facts f = deployed_facts(off, ours + "Environment=MORE=1\n");
  f.state.managed[kDropIn] = sha256_hex(ours);
  auto plan = planned(f, config(), wish(Verb::mode, "r1", Mode::validate));
  EXPECT_TRUE(plan.restarts_engine);
  EXPECT_TRUE(says(plan, std::string(kDropIn) + " was changed by somebody else, and the engine"));
  EXPECT_FALSE(says(plan, "command line"));

  f.files[kDropIn].reset();
  plan = planned(f, config(), wish(Verb::mode, "r1", Mode::off));
  EXPECT_TRUE(plan.restarts_engine);
  EXPECT_TRUE(says(plan, std::string(kDropIn) + " is gone"));

  // Nobody else was there: the configuration has changed.
  f = deployed_facts(off, ours);
  f.state.managed[kDropIn] = sha256_hex(ours);
  Config other = config();
  other.kernel.defrag_sort = false;
  EXPECT_TRUE(says(planned(f, other, wish(Verb::mode, "r1", Mode::off)), "the environment"));
  other = config(R"(, "modes": {"validate": {"mem_fraction_static": 0.9}})");
  EXPECT_TRUE(says(planned(f, other, wish(Verb::mode, "r1", Mode::validate)),
                   "the command line of mode validate is another one"));
}

TEST(PlanOfModes, ModeWithAnotherCommandLineRestarts) {
  const Deployed off{"r1", Mode::off, false};
  Facts f = deployed_facts(off, text_in(facts(), off));
  f.files[paths::kControl] = FileImage{std::string("\xff\x00x", 3), {0644, 0, 0}, {}};
  const auto plan = planned(f, config(R"(, "modes": {"validate": {"mem_fraction_static": 0.9}})"),
                            wish(Verb::mode, "r1", Mode::validate));
  EXPECT_TRUE(plan.restarts_engine);
  EXPECT_EQ(plan.to, (Deployed{"r1", Mode::validate, false}));
  EXPECT_EQ(find_step(plan, StepKind::write_control), nullptr);
  EXPECT_NE(find_step(plan, StepKind::remove_file, paths::kControl), nullptr)
      << "running ranks must not follow it before the restart";
}

constexpr const char* kOtherLineOfOn = R"(, "modes": {"on": {"mem_fraction_static": 0.9}})";

TEST(PlanOfModes, OnByARestartGoesToValidateFirst) {
  const Config c = config(kOtherLineOfOn);
  const Deployed off{"r1", Mode::off, false};
  const auto f = deployed_facts(off, text_in(facts(), off));
  const Deployed first{"r1", Mode::validate, false, Mode::on};
  const auto plan = planned(f, c, wish(Verb::mode, "r1", Mode::on));
  EXPECT_EQ(plan.to, first);
  EXPECT_TRUE(plan.restarts_engine);
  EXPECT_EQ(plan.gate.mode, Mode::validate);
  const auto& text = find_step(plan, StepKind::write_file, kDropIn)->after->bytes;
  EXPECT_NE(text.find("--mem-fraction-static 0.9\n"), std::string::npos) << "on's command line";
  EXPECT_NE(text.find("KDTREE_VERIFY=validate"), std::string::npos);
  ASSERT_FALSE(plan.notes.empty());
  EXPECT_NE(plan.notes.back().find("kdtreectl mode on"), std::string::npos);

  // From there it is live, in the processes that have compared.
  const auto there = deployed_facts(first, make_engine_unit(facts(), c, first)->text);
  const auto second = planned(there, c, wish(Verb::mode, "r1", Mode::on));
  EXPECT_EQ(second.to, (Deployed{"r1", Mode::on, false}));
  EXPECT_FALSE(second.restarts_engine);
  EXPECT_TRUE(second.switches_live());
}

TEST(PlanOfModes, OnByARestartIsForForceOnlyAndTheHashKnowsIt) {
  const Config c = config(kOtherLineOfOn);
  const Deployed off{"r1", Mode::off, false};
  const auto f = deployed_facts(off, text_in(facts(), off));
  auto w = wish(Verb::mode, "r1", Mode::on);
  const auto careful = planned(f, c, w);
  w.forced = true;
  const auto forced = planned(f, c, w);
  EXPECT_EQ(forced.to.mode, Mode::on);
  EXPECT_TRUE(forced.forced);
  EXPECT_NE(plan_hash(forced), plan_hash(careful));
}

TEST(PlanOfModes, NoWayAroundTheVerdictWhileOn) {
  const Deployed on{"r1", Mode::on, false};
  const auto f = deployed_facts(on, text_in(facts(), on));
  // Ranks that aren't armed: on again, or the same release again, means other processes.
  for (const Verb verb : {Verb::mode, Verb::deploy, Verb::rollback}) {
    auto w = wish(verb, "r1", Mode::on);
    w.restart = true;
    EXPECT_EQ(planned(f, config(), w).to.mode, Mode::validate) << verb_name(verb);
  }
  // Ranks that were told another mode: a deploy asks for no verdict, so it leads to none.
  auto told = f;
  told.control = Control{};
  told.control->mode = Mode::off;
  EXPECT_EQ(planned(told, config(), wish(Verb::deploy, "r1", Mode::on)).to.mode, Mode::validate);
  // Nothing to do is nothing to do.
  EXPECT_TRUE(planned(f, config(), wish(Verb::deploy, "r1", Mode::on)).empty());
}

TEST(PlanOfModes, WishedRestartAndNothingElse) {
  const Deployed off{"r1", Mode::off, false};
  const auto f = deployed_facts(off, text_in(facts(), off));
  EXPECT_TRUE(planned(f, config(), wish(Verb::mode, "r1", Mode::off)).empty());
  auto w = wish(Verb::mode, "r1", Mode::off);
  w.restart = true;
  const auto plan = planned(f, config(), w);
  ASSERT_EQ(plan.steps.size(), 1u);
  EXPECT_EQ(plan.steps[0].kind, StepKind::restart_unit);
}

TEST(PlanOfModes, ColdRemovesTheDropInAndRestarts) {
  const Deployed on{"r1", Mode::on, false};
  const auto f = deployed_facts(on, text_in(facts(), on));
  auto w = wish(Verb::mode, "r1", Mode::off);
  w.target.cold = true;
  const auto plan = planned(f, config(), w);
  EXPECT_NE(find_step(plan, StepKind::remove_file, kDropIn), nullptr);
  EXPECT_TRUE(plan.restarts_engine);
  EXPECT_EQ(plan.gate.ranks, 0);
  EXPECT_EQ(plan.undo_gate.ranks, 2);
  EXPECT_TRUE(plan.after.managed.empty());
}

}  // namespace
}  // namespace kdtree
