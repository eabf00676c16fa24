// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "planned.h"

namespace kdtree {
namespace {

using namespace test;

TEST(PlanForms, EqualFactsGiveEqualHashesAndOtherFactsOthers) {
  const auto w = wish(Verb::deploy, "r1", Mode::off);
  const auto hash = plan_hash(planned(facts(), config(), w));
  EXPECT_EQ(hash.size(), 64u);
  EXPECT_EQ(hash, plan_hash(planned(facts(), config(), w)));
  Facts other = facts();
  other.unit.files[0].text += "Environment=PYTHONPATH=/x\n";
  EXPECT_NE(hash, plan_hash(planned(other, config(), w)));
  EXPECT_NE(hash, plan_hash(planned(facts(), config(), wish(Verb::deploy, "r1", Mode::validate))));
}

TEST(PlanForms, TheHashKnowsWhatSystemdHasOfTheUnit) {
  const auto w = wish(Verb::deploy, "r1", Mode::off);
  const auto hash = plan_hash(planned(facts(), config(), w));
  for (const auto& change : std::vector<std::function<void(UnitState&)>>{
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

TEST(PlanForms, JsonComesBackTheSame) {
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

TEST(PlanForms, TextShowsWhatChanges) {
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
