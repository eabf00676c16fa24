// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "agent/plan/engine_unit.h"
#include "plan_host.h"

namespace kdtree {
namespace {

using namespace test;

EngineUnit made(const Facts& f, const Config& c,
                const Deployed& target = {"r1", Mode::off, false}) {
  auto unit = make_engine_unit(f, c, target);
  EXPECT_TRUE(unit) << (unit ? "" : unit.error().what);
  return unit ? *unit : EngineUnit{};
}

Error refused(const Facts& f, const Config& c, const Deployed& target = {"r1", Mode::off, false}) {
  auto unit = make_engine_unit(f, c, target);
  EXPECT_FALSE(unit);
  return unit ? Error{} : unit.error();
}

bool has_line(const std::string& text, const std::string& line) {
  return ("\n" + text).find("\n" + line + "\n") != std::string::npos;
}

TEST(EngineUnit, DropInSetsTheEnvironmentAndLeavesTheCommandAlone) {
  const auto unit = made(facts(), config());
  EXPECT_EQ(unit.path, kDropIn);
  EXPECT_TRUE(has_line(unit.text, "Environment=KDTREE_VERIFY=off")) << unit.text;
  EXPECT_TRUE(
      has_line(unit.text, "Environment=KDTREE_LIB=/opt/kdtree/releases/r1/lib/libkdtree_torch.so"));
  EXPECT_TRUE(has_line(unit.text, "Environment=PYTHONPATH=/opt/kdtree/releases/r1/python"));
  EXPECT_TRUE(has_line(unit.text, "Environment=KDTREE_DEFRAG_SORT=1"));
  EXPECT_TRUE(has_line(unit.text, "RuntimeDirectory=kdtree/stats"));
  EXPECT_EQ(unit.text.find("ExecStart"), std::string::npos);
  EXPECT_EQ(unit.text.find("KDTREE_ACCEPT_ENGINE"), std::string::npos);
  EXPECT_TRUE(unit.environment_text.empty());
}

TEST(EngineUnit, ModesOfOneCommandLineDifferInTheModeAlone) {
  const auto off = made(facts(), config());
  const auto on = made(facts(), config(), {"r1", Mode::on, false});
  EXPECT_NE(off.text, on.text);
  EXPECT_EQ(without_mode(off.text), without_mode(on.text));
  const auto other = made(facts(), config(R"(, "modes": {"on": {"mem_fraction_static": 0.9}})"),
                          {"r1", Mode::on, false});
  EXPECT_NE(without_mode(off.text), without_mode(other.text));
}

TEST(EngineUnit, ModeRewritesTheCommandLine) {
  const auto c = config(R"(, "modes": {"on": {"mem_fraction_static": 0.9,
      "add_flags": ["--x", "a b"], "remove_flags": ["--tp"]}})");
  const auto unit = made(facts(), c, {"r1", Mode::on, false});
  EXPECT_NE(unit.text.find("ExecStart=\nExecStart=/opt/e/bin/python3 -m sglang.launch_server "
                           "--mem-fraction-static 0.9 --x \"a b\"\n"),
            std::string::npos)
      << unit.text;
  ASSERT_EQ(unit.notes.size(), 1u);
  EXPECT_EQ(unit.notes[0], "mode on: --mem-fraction-static 0.94 -> 0.9");
}

TEST(EngineUnit, OurOwnDropInIsNoPartOfTheBase) {
  Facts f = facts();
  f.unit.files.push_back(
      {kDropIn,
       "[Service]\nExecStart=\nExecStart=/opt/e/bin/python3 -m sglang.launch_server "
       "--mem-fraction-static 0.5\nEnvironment=PYTHONPATH=/opt/kdtree/releases/r0/python\n"});
  const auto unit = made(f, config());
  EXPECT_EQ(unit.exec_start,
            "/opt/e/bin/python3 -m sglang.launch_server --tp 2 --mem-fraction-static 0.94");
  EXPECT_TRUE(has_line(unit.text, "Environment=PYTHONPATH=/opt/kdtree/releases/r1/python"));
}

TEST(EngineUnit, PythonPathIsComposedFromTheEffectiveValue) {
  Facts f = facts();
  f.unit.manager_environment["PYTHONPATH"] = "/m";
  EXPECT_TRUE(
      has_line(made(f, config()).text, "Environment=PYTHONPATH=/opt/kdtree/releases/r1/python:/m"));
  f.unit.files.push_back({"/etc/systemd/system/engine.service.d/10-a.conf",
                          "[Service]\nEnvironment=\"PYTHONPATH=%h/lib:/two words\"\n"});
  EXPECT_TRUE(
      has_line(made(f, config()).text,
               "Environment=\"PYTHONPATH=/opt/kdtree/releases/r1/python:%h/lib:/two words\""));
}

TEST(EngineUnit, EnvironmentFileThatSetsOurNamesIsOverriddenByOneOfOurs) {
  Facts f = facts();
  f.unit.environment_files = {
      {"/etc/default/engine", "PYTHONPATH=/site\nKDTREE_VERIFY=on\nKDTREE_OLD=1\nA=b\n"}};
  const auto unit = made(f, config());
  EXPECT_TRUE(has_line(unit.text, "EnvironmentFile=/etc/kdtree/engine.env"));
  EXPECT_TRUE(has_line(unit.environment_text, "KDTREE_VERIFY=\"off\"")) << unit.environment_text;
  EXPECT_TRUE(has_line(unit.environment_text, "KDTREE_OLD="));
  EXPECT_TRUE(
      has_line(unit.environment_text, "PYTHONPATH=\"/opt/kdtree/releases/r1/python:/site\""));
}

TEST(EngineUnit, AcceptedEngineIsPassedOn) {
  Facts f = facts();
  f.state.accepted_engines["f1"] = "r1";
  EXPECT_TRUE(has_line(made(f, config()).text, "Environment=KDTREE_ACCEPT_ENGINE=f1"));
}

TEST(EngineUnit, LaterDropInThatOverridesIsRefused) {
  const std::string later = "/etc/systemd/system/engine.service.d/90-local.conf";
  for (std::string line : {"Environment=KDTREE_VERIFY=on", "Environment=A=1 PYTHONPATH=/x",
                           "Environment=", "RuntimeDirectory="}) {
    Facts f = facts();
    f.unit.files.push_back({later, "[Service]\n" + line + "\n"});
    const auto error = refused(f, config());
    EXPECT_NE(error.what.find(later), std::string::npos) << line;
    EXPECT_FALSE(error.hint.empty());
  }
  Facts f = facts();
  f.unit.files.push_back({later, "[Service]\nExecStart=\nExecStart=/opt/e/bin/python3 s.py\n"});
  EXPECT_EQ(made(f, config()).exec_start, "/opt/e/bin/python3 s.py")
      << "nothing of ours to override";
  refused(f, config(R"(, "modes": {"off": {"add_flags": ["--x"]}})"));
}

TEST(EngineUnit, FlagHiddenInAVariableIsRefusedOnlyIfItIsEdited) {
  Facts f = facts("/opt/e/bin/python3 -m sglang.launch_server $OPTS");
  f.unit.files[0].text += "Environment=\"OPTS=--tp 2 --mem-fraction-static 0.9\"\n";
  EXPECT_TRUE(make_engine_unit(f, config(), {"r1", Mode::off, false}));
  const auto error = refused(f, config(R"(, "modes": {"off": {"mem_fraction_static": 0.8}})"));
  EXPECT_NE(error.what.find("OPTS"), std::string::npos);
  EXPECT_TRUE(make_engine_unit(f, config(R"(, "modes": {"off": {"add_flags": ["--x"]}})"),
                               {"r1", Mode::off, false}));
}

TEST(EngineUnit, WhatCannotServeIsRefused) {
  Facts dynamic = facts();
  dynamic.unit.state.sandbox.dynamic_user = true;
  refused(dynamic, config());
  Facts chroot = facts();
  chroot.unit.state.sandbox.root_directory = "/srv/root";
  refused(chroot, config());
  Facts hidden = facts();
  hidden.unit.state.sandbox.inaccessible_paths = {"-/opt"};
  refused(hidden, config());
  Facts unset = facts();
  unset.unit.files[0].text += "UnsetEnvironment=PYTHONPATH\n";
  refused(unset, config());
  Facts two = facts();
  two.unit.files[0].text += "ExecStart=/bin/true\n";
  EXPECT_NE(refused(two, config()).what.find("has 2 ExecStart="), std::string::npos);
  refused(facts("/bin/sh -c 'python -m sglang.launch_server'"), config());
}

TEST(EngineUnit, WithoutKdtreeThereIsNoDropIn) {
  EXPECT_EQ(made(facts(), config(), {"r1", Mode::off, true}).text, "");
  EXPECT_EQ(made(facts(), config(), {}).text, "");
}

constexpr const char* kWhole =
    R"({"engine": {"unit": "engine.service", "python": "/opt/e/bin/python3",
     "health_url": "http://127.0.0.1:1/health", "ranks": 2, "user": "llm",
     "command": ["/opt/e/bin/python3", "-m", "sglang.launch_server", "--x", "50% $y"],
     "environment": {"HOME": "/srv/a b"}}})";

TEST(EngineUnit, WholeUnitIsWrittenFromTheCommand) {
  const auto c = parse_config(kWhole, "test").value();
  Facts f = facts();
  f.unit = {};
  f.unit.state.load_state = "not-found";
  const auto unit = made(f, c);
  EXPECT_EQ(unit.path, kFragment);
  EXPECT_TRUE(has_line(unit.text, "User=llm"));
  EXPECT_TRUE(has_line(unit.text, "Environment=\"HOME=/srv/a b\""));
  EXPECT_TRUE(
      has_line(unit.text, "ExecStart=/opt/e/bin/python3 -m sglang.launch_server --x \"50%% $$y\""))
      << unit.text;
  EXPECT_TRUE(has_line(unit.text, "Environment=KDTREE_VERIFY=off"));
  EXPECT_TRUE(has_line(unit.text, "WantedBy=multi-user.target"));
  const auto plain = made(f, c, {"r1", Mode::off, true});
  EXPECT_EQ(plain.text.find("KDTREE"), std::string::npos);
  EXPECT_TRUE(has_line(plain.text, "User=llm"));
}

}  // namespace
}  // namespace kdtree
