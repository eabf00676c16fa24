// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "agent/plan/diff.h"
#include "agent/plan/manifest.h"
#include "agent/plan/state.h"
#include "agent/util/sha256.h"
#include "plan_host.h"

namespace kdtree {
namespace {

using test::PlanFolder;

State full_state() {
  State state;
  state.current = {"r2", Mode::validate, false};
  state.good = Deployed{"r1", Mode::off, false};
  state.before = Deployed{"r0", Mode::on, true};
  state.trial = true;
  state.accepted_engines["f"] = "r1";
  state.unit_before = UnitBefore{"e.service", "/bin/x \"y\"", "d"};
  state.managed["/etc/x"] = "d2";
  state.history.push_back({"t", "deploy", "none", "r1 off", "good", "", "h", "root", false,
                           "/var/lib/kdtree/evidence/t.txt"});
  state.before = Deployed{"r1", Mode::validate, false, Mode::on};
  state.last_start = std::chrono::milliseconds(630'000);
  state.configuration = test::config().document;
  return state;
}

TEST(State, AHostWithoutTheFileIsEmpty) {
  PlanFolder folder;
  const auto state = read_state(folder.root());
  ASSERT_TRUE(state);
  EXPECT_TRUE(state->current.none());
}

TEST(State, ComesBackTheSame) {
  PlanFolder folder;
  ASSERT_TRUE(write_state(folder.root(), full_state()));
  const auto state = read_state(folder.root());
  ASSERT_TRUE(state);
  EXPECT_EQ(to_json(*state), to_json(full_state()));
}

TEST(State, OfAnOlderProgramHasNoConfiguration) {
  auto older = to_json(full_state());
  older.erase("configuration");
  const auto state = parse_state(older.dump(), "state.json");
  ASSERT_TRUE(state);
  EXPECT_FALSE(state->configuration);
  EXPECT_EQ(to_json(*state), older);
}

TEST(State, HistoryIsBounded) {
  PlanFolder folder;
  State state;
  for (std::size_t i = 0; i < kHistoryKept + 5; ++i) {
    HistoryEntry entry;
    entry.plan = std::to_string(i);
    state.history.push_back(entry);
  }
  ASSERT_TRUE(write_state(folder.root(), state));
  const auto kept = read_state(folder.root());
  ASSERT_EQ(kept->history.size(), kHistoryKept);
  EXPECT_EQ(kept->history[0].plan, "5");
}

TEST(State, DamagedAndNewerOnesAreRefused) {
  PlanFolder folder;
  for (std::string text : {"", "{", "[]", "{\"format\": 1}", R"({"format": "x"})"}) {
    folder.write("var/lib/kdtree/state.json", text);
    const auto state = read_state(folder.root());
    ASSERT_FALSE(state) << text;
    EXPECT_NE(state.error().what.find("is damaged"), std::string::npos);
  }
  folder.write("var/lib/kdtree/state.json", "{\"format\": 2}");
  EXPECT_NE(read_state(folder.root()).error().what.find("newer kdtreectl"), std::string::npos);
}

TEST(Audit, OneLineAnEntryWhateverTheText) {
  PlanFolder folder;
  HistoryEntry entry;
  entry.verb = "mode";
  entry.reason = "two\nlines \xff";
  ASSERT_TRUE(append_audit(folder.root(), entry, {"kdtreectl", "mode", "on"}));
  ASSERT_TRUE(append_audit(folder.root(), entry, {}));
  const auto text = folder.read("var/lib/kdtree/audit.jsonl");
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2);
  EXPECT_EQ(nlohmann::json::parse(text.substr(0, text.find('\n')))["argv"][2], "on");
}

Manifest sealed(const PlanFolder& folder) {
  folder.write("rel/r1/lib/a.so", "a");
  folder.write("rel/r1/python/b.py", "b");
  folder.write("rel/r1/build.log", "log");
  Manifest manifest = test::manifest("r1");
  manifest.files = {{"lib/a.so", sha256_hex("a")}, {"python/b.py", sha256_hex("b")}};
  folder.write("rel/r1/manifest.json", to_json(manifest).dump());
  return manifest;
}

TEST(Manifest, SaysWhatTheHostHasElse) {
  Manifest made = test::manifest("r1");
  made.driver = "580.82";
  const Ground same{"0.5.17", "f1", "2.11.0+cu130", "3.11.9", "580.82"};
  EXPECT_TRUE(not_made_for(made, same).empty()) << "a patch release of Python is the same ABI";
  EXPECT_TRUE(not_made_for(made, {}).empty()) << "unknown is not another";
  using Lines = std::vector<std::string>;
  auto other = same;
  other.engine_fingerprint = "f2";
  EXPECT_EQ(
      not_made_for(made, other),
      Lines{"sglang 0.5.17 (fingerprint f2), the release was made for 0.5.17 (fingerprint f1)"});
  other = same;
  other.torch = "2.11.0+cu128";
  EXPECT_EQ(not_made_for(made, other),
            Lines{"torch 2.11.0+cu128, the release was made for 2.11.0+cu130"});
  other = same;
  other.python_version = "3.12.1";
  EXPECT_EQ(not_made_for(made, other), Lines{"Python 3.12, the release was made for 3.11"});
  other = same;
  other.driver = "590.44.01";
  EXPECT_EQ(not_made_for(made, other), Lines{"driver 590.44.01, the release was made for 580.82"});
}

TEST(Manifest, OneOfAnOlderKdtreeNamesNoDriver) {
  auto text = to_json(test::manifest("r1"));
  text.erase("driver");
  text.erase("engine_accepted");
  const auto read = parse_manifest(text.dump(), "here");
  ASSERT_TRUE(read);
  EXPECT_EQ(read->driver, "");
  EXPECT_FALSE(read->engine_accepted);
}

TEST(Manifest, ComesBackAndVerifies) {
  PlanFolder folder;
  const auto manifest = sealed(folder);
  const auto read = read_manifest(folder / "rel/r1");
  ASSERT_TRUE(read) << read.error().what;
  EXPECT_EQ(to_json(*read), to_json(manifest));
  EXPECT_TRUE(verify_release(folder / "rel/r1", *read));
  folder.write("rel/r1/python/__pycache__/b.cpython-312.pyc", "x");
  EXPECT_TRUE(verify_release(folder / "rel/r1", *read)) << "bytecode of another Python";
}

TEST(Manifest, EveryDifferenceIsFoundAndNamed) {
  struct Case {
    std::function<void(const PlanFolder&)> spoil;
    std::string what;
  };
  for (const Case& each : {
           Case{[](const PlanFolder& f) { f.write("rel/r1/lib/a.so", "A"); },
                "lib/a.so is not what was installed"},
           Case{[](const PlanFolder& f) { std::filesystem::remove(f / "rel/r1/python/b.py"); },
                "python/b.py is missing"},
           Case{[](const PlanFolder& f) { f.write("rel/r1/python/torch.py", "evil"); },
                "python/torch.py does not belong there"},
           Case{[](const PlanFolder& f) {
                  std::filesystem::create_symlink("/etc/passwd", f / "rel/r1/python/c.py");
                },
                "is not a regular file"},
       }) {
    PlanFolder folder;
    const auto manifest = sealed(folder);
    each.spoil(folder);
    const auto verified = verify_release(folder / "rel/r1", manifest);
    ASSERT_FALSE(verified) << each.what;
    EXPECT_NE(verified.error().what.find(each.what), std::string::npos) << verified.error().what;
  }
}

TEST(Manifest, OfAnotherReleaseOrFormatIsRefused) {
  PlanFolder folder;
  sealed(folder);
  std::filesystem::rename(folder / "rel/r1", folder / "rel/r9");
  EXPECT_NE(read_manifest(folder / "rel/r9").error().what.find("another release"),
            std::string::npos);
  EXPECT_FALSE(parse_manifest("{}", "x"));
  EXPECT_NE(parse_manifest("{\"format\": 9}", "x").error().what.find("newer"), std::string::npos);
}

TEST(Diff, KeepsWhatIsCommon) {
  EXPECT_EQ(line_diff("a\nb\nc\n", "a\nx\nc\n"), "  a\n- b\n+ x\n  c\n");
  EXPECT_EQ(line_diff("", "a\n"), "+ a\n");
  EXPECT_EQ(line_diff("a\n", ""), "- a\n");
}

}  // namespace
}  // namespace kdtree
