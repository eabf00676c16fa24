// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>

#include "agent/plan/unit_lines.h"
#include "agent/util/sha256.h"
#include "plan_host.h"

namespace kdtree {
namespace {

using namespace test;
using Lines = std::vector<std::string>;

// As systemd has facts(): specifiers expanded.
Facts seen() {
  Facts f = facts("/opt/e/bin/python3 -m sglang.launch_server --tp 2 --path %h/m");
  f.unit.files[0].text += "Environment=PYTHONPATH=%h/lib\n";
  f.unit.state.environment = {{"HOME", "/srv"}, {"PYTHONPATH", "/root/lib"}};
  f.unit.state.exec_start = {
      {"/opt/e/bin/python3",
       {"/opt/e/bin/python3", "-m", "sglang.launch_server", "--tp", "2", "--path", "/root/m"},
       {}}};
  return f;
}

Lines after(const Facts& f, const Config& c, const Deployed& target) {
  return unit_lines_after(f, c, make_engine_unit(f, c, target).value());
}

bool has(const Lines& lines, const std::string& line) {
  return std::ranges::find(lines, line) != lines.end();
}

TEST(UnitLines, SayWhatSystemdHas) {
  EXPECT_EQ(unit_lines(seen().unit.state),
            (Lines{std::string("FragmentPath=") + kFragment, "Environment=HOME=/srv",
                   "Environment=PYTHONPATH=/root/lib",
                   "ExecStart=/opt/e/bin/python3 -m sglang.launch_server", "ExecStart=--tp 2",
                   "ExecStart=--path /root/m"}));
  EXPECT_TRUE(unit_lines(UnitState{}).empty());
}

TEST(UnitLines, ADropInAddsItsPart) {
  Facts f = seen();
  f.unit.state.drop_in_paths = {"/x/10-a.conf", "/x/90-z.conf"};
  const auto lines = after(f, config(), {"r1", Mode::off, false});
  const auto dropped = std::ranges::find(lines, std::string("DropInPaths=") + kDropIn);
  ASSERT_NE(dropped, lines.end());
  EXPECT_EQ(*(dropped - 1), "DropInPaths=/x/10-a.conf");
  EXPECT_EQ(*(dropped + 1), "DropInPaths=/x/90-z.conf");
  EXPECT_TRUE(has(lines, "Environment=KDTREE_VERIFY=off"));
  EXPECT_TRUE(has(lines, "Environment=PYTHONPATH=/opt/kdtree/releases/r1/python:%h/lib"));
  EXPECT_TRUE(has(lines, "RuntimeDirectory=kdtree/stats"));
  EXPECT_TRUE(has(lines, "ExecStart=--path /root/m")) << "an unchanged command line is systemd's";
}

TEST(UnitLines, OnlyWhatAModeChangesDiffers) {
  const Config c = config(R"(, "modes": {"validate": {"add_flags": ["--x", "50%"]}})");
  const Deployed off{"r1", Mode::off, false};
  Facts f = seen();
  const auto first = make_engine_unit(f, c, off).value();
  f.unit.files.push_back({kDropIn, first.text});
  f.unit.state.drop_in_paths = {kDropIn};
  f.unit.state.runtime_directories = {"kdtree/stats"};
  f.unit.state.environment = {{"HOME", "/srv"},
                              {"PYTHONPATH", "/opt/kdtree/releases/r1/python:/root/lib"}};
  for (const auto& line : after(seen(), c, off))
    if (line.starts_with("Environment=KDTREE_"))
      f.unit.state.environment.emplace_back(line.substr(12, line.find('=', 12) - 12),
                                            line.substr(line.find('=', 12) + 1));
  const auto now = unit_lines(f.unit.state);
  EXPECT_EQ(after(f, c, off), now) << "the same mode is the same unit";

  const auto then = after(f, c, {"r1", Mode::validate, false});
  Lines gone, come;
  for (const auto& line : now)
    if (!has(then, line)) gone.push_back(line);
  for (const auto& line : then)
    if (!has(now, line)) come.push_back(line);
  EXPECT_EQ(gone, (Lines{"Environment=KDTREE_VERIFY=off"}));
  EXPECT_EQ(come, (Lines{"Environment=KDTREE_VERIFY=validate", "ExecStart=--x 50%"}));

  // Without kdtree the unit's own PYTHONPATH is in force again.
  const auto plain = after(f, c, Deployed{});
  EXPECT_FALSE(has(plain, std::string("DropInPaths=") + kDropIn));
  EXPECT_TRUE(has(plain, "Environment=PYTHONPATH=%h/lib"));
  EXPECT_FALSE(std::ranges::any_of(plain, [](const auto& line) {
    return line.find("KDTREE_") != std::string::npos || line.find("kdtree") != std::string::npos;
  }));
}

TEST(UnitLines, AWholeUnitThatIsNotThereYet) {
  Config c = config();
  c.engine.command = {"/opt/e/bin/python3", "-m", "sglang.launch_server", "--tp-size", "2"};
  c.engine.user = "sglang";
  c.engine.environment = {{"MORE", "50%"}};
  Facts f = facts();
  f.unit = {};
  f.unit.state.load_state = "not-found";
  EXPECT_TRUE(unit_lines(f.unit.state).empty());
  const auto lines = after(f, c, {"r1", Mode::off, false});
  for (const char* line : {"User=sglang", "Environment=MORE=50%", "Environment=KDTREE_VERIFY=off",
                           "ExecStart=--tp-size 2"})
    EXPECT_TRUE(has(lines, line)) << line;
}

TEST(UnitLines, AreLinesWhateverTheEnvironmentHolds) {
  UnitState unit;
  unit.load_state = "loaded";
  unit.environment = {{"A", "one\ntwo"}, {"B", "\xff"}};
  EXPECT_EQ(unit_lines(unit), (Lines{"Environment=A=one\\ntwo", "Environment=B=\xef\xbf\xbd"}));
}

}  // namespace
}  // namespace kdtree
