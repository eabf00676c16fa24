// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "agent/plan/engine_unit.h"
#include "agent/util/sha256.h"
#include "plan_host.h"

namespace kdtree {
namespace {

using namespace test;

Plan planned(const Facts& f, const Config& c, const Wish& w) {
  auto plan = make_plan(f, c, w);
  EXPECT_TRUE(plan) << (plan ? "" : plan.error().what);
  return plan ? *plan : Plan{};
}

Error refused(const Facts& f, const Config& c, const Wish& w) {
  auto plan = make_plan(f, c, w);
  EXPECT_FALSE(plan);
  return plan ? Error{} : plan.error();
}

std::string text_in(const Facts& f, const Deployed& state) {
  return make_engine_unit(f, config(), state)->text;
}

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

TEST(Plan, ModeOfArmedRanksNeedsNoRestart) {
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

bool says(const Plan& plan, const std::string& text) {
  return std::ranges::any_of(
      plan.notes, [&](const auto& note) { return note.find(text) != std::string::npos; });
}

TEST(Plan, AHandEditedDropInIsWrittenAgainLiveWhereItStartsTheSameEngine) {
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

TEST(Plan, AnEditThatStartsAnotherEngineRestartsItAndSaysWhy) {
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

TEST(Plan, ModeWithAnotherCommandLineRestarts) {
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

TEST(Plan, OnByARestartGoesToValidateFirst) {
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

TEST(Plan, OnByARestartIsForForceOnlyAndTheHashKnowsIt) {
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

TEST(Plan, NoWayAroundTheVerdictWhileOn) {
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

TEST(Plan, WhatPatchesByHandIsRefusedOrSaid) {
  Facts f = facts();
  f.hand_made = {{"/etc/x.conf sets KDTREE_ variables by hand", "ours win", false}};
  const auto plan = planned(f, config(), wish(Verb::deploy, "r1", Mode::off));
  EXPECT_NE(std::ranges::find(plan.notes, "/etc/x.conf sets KDTREE_ variables by hand; ours win"),
            plan.notes.end());
  f.hand_made.push_back({"/p/sitecustomize.py patches the engine by hand", "take it away", true});
  const auto error = refused(f, config(), wish(Verb::deploy, "r1", Mode::off));
  EXPECT_NE(error.what.find("/p/sitecustomize.py"), std::string::npos);
  EXPECT_EQ(error.hint, "take it away");
}

TEST(Plan, WishedRestartAndNothingElse) {
  const Deployed off{"r1", Mode::off, false};
  const auto f = deployed_facts(off, text_in(facts(), off));
  EXPECT_TRUE(planned(f, config(), wish(Verb::mode, "r1", Mode::off)).empty());
  auto w = wish(Verb::mode, "r1", Mode::off);
  w.restart = true;
  const auto plan = planned(f, config(), w);
  ASSERT_EQ(plan.steps.size(), 1u);
  EXPECT_EQ(plan.steps[0].kind, StepKind::restart_unit);
}

TEST(Plan, ColdRemovesTheDropInAndRestarts) {
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

TEST(Plan, AnotherEngineThanTheReleaseWasMadeForNeedsADeploy) {
  for (const auto verb : {Verb::mode, Verb::rollback}) {
    Facts changed = facts();
    changed.engine->fingerprint = "f2";
    changed.engine->version = "0.5.18";
    const auto error = refused(changed, config(), wish(verb, "r1", Mode::validate));
    EXPECT_EQ(error.what,
              "release r1 does not fit this host: sglang 0.5.18 (fingerprint f2), the release was "
              "made for 0.5.17 (fingerprint f1)");
    EXPECT_NE(error.hint.find("kdtreectl deploy"), std::string::npos);
    Wish cold = wish(verb, "r1", Mode::off);
    cold.target.cold = true;
    EXPECT_TRUE(make_plan(changed, config(), cold)) << "the engine without kdtree needs no release";
  }
}

TEST(Plan, Refusals) {
  const auto w = wish(Verb::deploy, "r1", Mode::off);
  Facts user = facts();
  user.root = false;
  EXPECT_NE(refused(user, config(), w).what.find("by root"), std::string::npos);
  Facts missing = facts();
  missing.unit.state.load_state = "not-found";
  EXPECT_NE(refused(missing, config(), w).what.find("no unit engine.service"), std::string::npos);
  Facts masked = facts();
  masked.unit.state.load_state = "masked";
  EXPECT_NE(refused(masked, config(), w).what.find("masked"), std::string::npos);
  Facts torch = facts();
  torch.engine->torch = "2.12.0";
  EXPECT_NE(refused(torch, config(), w).what.find("torch 2.12.0, the release was made for 2.11.0"),
            std::string::npos);
  Facts blind = facts();
  blind.engine.reset();
  blind.engine_error = "no python";
  EXPECT_NE(refused(blind, config(), w).what.find("no python"), std::string::npos);
  Facts gone = facts();
  gone.release.reset();
  EXPECT_NE(refused(gone, config(), w).what.find("not there or damaged"), std::string::npos);
  Facts arch = facts();
  arch.gpus = {{0, "RTX PRO 6000", "GPU-1", "120", {}}};
  arch.release->archs = {"90"};
  Config cuda = config();
  cuda.kernel.device = KernelDevice::cuda;
  EXPECT_NE(refused(arch, cuda, w).what.find("no code for GPU 0"), std::string::npos);
}

TEST(Plan, WholeUnitOfSomebodyElseIsNotOverwritten) {
  Config c = config();
  c.engine.command = {"/opt/e/bin/python3", "-m", "sglang.launch_server"};
  Facts f = facts();
  f.files[kFragment] = FileImage{f.unit.files[0].text, {0644, 0, 0}, {}};
  EXPECT_NE(refused(f, c, wish(Verb::deploy, "r1", Mode::off)).what.find("not kdtree's"),
            std::string::npos);
  f.unit.state.fragment_path = "/usr/lib/systemd/system/engine.service";
  EXPECT_NE(refused(f, c, wish(Verb::deploy, "r1", Mode::off)).what.find("exists already"),
            std::string::npos);
}

TEST(Plan, EqualFactsGiveEqualHashesAndOtherFactsOthers) {
  const auto w = wish(Verb::deploy, "r1", Mode::off);
  const auto hash = plan_hash(planned(facts(), config(), w));
  EXPECT_EQ(hash.size(), 64u);
  EXPECT_EQ(hash, plan_hash(planned(facts(), config(), w)));
  Facts other = facts();
  other.unit.files[0].text += "Environment=PYTHONPATH=/x\n";
  EXPECT_NE(hash, plan_hash(planned(other, config(), w)));
  EXPECT_NE(hash, plan_hash(planned(facts(), config(), wish(Verb::deploy, "r1", Mode::validate))));
}

TEST(Plan, TheHashKnowsWhatSystemdHasOfTheUnit) {
  const auto w = wish(Verb::deploy, "r1", Mode::off);
  const auto hash = plan_hash(planned(facts(), config(), w));
  for (auto change : std::vector<std::function<void(UnitState&)>>{
           [](auto& s) {
             s.environment = {{"CUDA_VISIBLE_DEVICES", "0"}};
           },
           [](auto& s) { s.drop_in_paths = {"/etc/systemd/system/engine.service.d/70-x.conf"}; },
           [](auto& s) {
             s.exec_start = {{"/bin/x", {"/bin/x", "--tp", "4"}, {}}};
           },
           [](auto& s) { s.user = "other"; },
           [](auto& s) { s.fragment_path = "/run/systemd/system/engine.service"; }}) {
    Facts f = facts();
    change(f.unit.state);
    EXPECT_NE(plan_hash(planned(f, config(), w)), hash);
  }
}

TEST(Plan, RanksThatTheCommandLineDoesNotMakeAreRefused) {
  const auto w = wish(Verb::deploy, "r1", Mode::off);
  const std::string engine = "/opt/e/bin/python3 -m sglang.launch_server ";
  for (const std::string flags : {"--tp-size 8", "--tensor-parallel-size=4", "--tp 1",
                                  "--tp-size 2 --nnodes 2", "--tp-size 2 --tp-size 4"}) {
    const auto error = refused(facts(engine + flags), config(), w);
    EXPECT_NE(error.what.find("engine.ranks is 2"), std::string::npos) << flags << error.what;
    EXPECT_NE(error.hint.find("set engine.ranks to "), std::string::npos);
  }
  EXPECT_NE(refused(facts(engine + "--tp-size 2 --pp-size 2"), config(), w).what.find("--pp-size"),
            std::string::npos);
  for (const std::string flags :
       {"--tp-size 2", "--tp=2", "--tp-size 4 --nnodes 2", "--tp-size 2 --pp-size 2 --nnodes 2", "",
        "--tp-size $TP", "--tp-size", "--tp-size 2 --dp-size 2 --enable-dp-attention"})
    planned(facts(engine + flags), config(), w);
  // The ways back don't ask.
  planned(facts(engine + "--tp-size 8"), config(), wish(Verb::uninstall, "", Mode::off));
  planned(facts(engine + "--tp-size 8"), config(), wish(Verb::rollback, "r1", Mode::off));
}

TEST(Plan, JsonComesBackTheSame) {
  const Deployed off{"r1", Mode::off, false};
  Facts f = deployed_facts(off, text_in(facts(), off));
  f.files[paths::kControl] = FileImage{std::string("\xff\x00x\x80", 4), {0644, 0, 0}, {}};
  f.state.accepted_engines["f1"] = "r1";
  for (const auto& w :
       {wish(Verb::mode, "r1", Mode::validate), wish(Verb::uninstall, "", Mode::off)}) {
    const auto plan = planned(f, config(), w);
    const auto back = parse_plan(nlohmann::json::parse(to_json(plan).dump()));
    ASSERT_TRUE(back) << back.error().what;
    EXPECT_EQ(to_json(*back), to_json(plan));
    EXPECT_EQ(plan_hash(*back), plan_hash(plan));
  }
  EXPECT_FALSE(parse_plan(nlohmann::json::object()));
  EXPECT_FALSE(parse_plan(nlohmann::json::array()));
}

TEST(Plan, TextShowsWhatChanges) {
  const Deployed off{"r1", Mode::off, false};
  const auto f = deployed_facts(off, text_in(facts(), off));
  const auto text = to_text(planned(f, config(), wish(Verb::mode, "r1", Mode::validate)));
  EXPECT_NE(text.find("mode: r1 off -> r1 validate\n"), std::string::npos) << text;
  EXPECT_NE(
      text.find("    - Environment=KDTREE_VERIFY=off\n    + Environment=KDTREE_VERIFY=validate\n"),
      std::string::npos)
      << text;
  EXPECT_NE(text.find("tell the running ranks: mode off -> validate\n"), std::string::npos);
  EXPECT_NE(text.find("what systemd then has of the engine's unit\n"), std::string::npos);
  EXPECT_NE(text.find("    + Environment=KDTREE_VERIFY=validate\n"), std::string::npos) << text;
  EXPECT_NE(text.find("2 ranks report release r1 in mode validate"), std::string::npos);
}

}  // namespace
}  // namespace kdtree
