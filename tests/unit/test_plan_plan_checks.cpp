// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "planned.h"

namespace kdtree {
namespace {

using namespace test;

TEST(PlanChecks, WhatPatchesByHandIsRefusedOrSaid) {
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

TEST(PlanChecks, AnotherEngineThanTheReleaseWasMadeForNeedsADeploy) {
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

TEST(PlanChecks, Refusals) {
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

TEST(PlanChecks, WholeUnitOfSomebodyElseIsNotOverwritten) {
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

TEST(PlanChecks, RanksThatTheCommandLineDoesNotMakeAreRefused) {
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

}  // namespace
}  // namespace kdtree
