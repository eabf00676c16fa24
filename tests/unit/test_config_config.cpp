// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "agent/config/json_object.h"
#include "plan_host.h"

namespace kdtree {
namespace {

using test::PlanFolder;

std::string with(const std::string& engine, const std::string& rest = "") {
  return R"({"engine": {"unit": "e.service", "python": "/p/python3", "health_url": "http://127.0.0.1:1/h",
             "ranks": 8)" +
         (engine.empty() ? "" : ", " + engine) + "}" + (rest.empty() ? "" : ", " + rest) + "}";
}

TEST(Config, SmallestHasTheDefaults) {
  const auto config = parse_config(with(""), "c");
  ASSERT_TRUE(config) << config.error().what;
  EXPECT_EQ(config->engine.ranks, 8);
  EXPECT_FALSE(config->engine.whole_unit());
  EXPECT_EQ(config->kernel.device, KernelDevice::cuda);
  EXPECT_TRUE(config->kernel.defrag_sort);
  EXPECT_EQ(config->deadlines.healthy_s, std::chrono::minutes(30));
  EXPECT_EQ(config->validate.min_compares, 1000u);
  EXPECT_EQ(config->validate.max_ulp, 4);
  EXPECT_EQ(config->validate.mean_ulp, 0.5);
  EXPECT_EQ(config->agent.listen, "127.0.0.1:9817");
  EXPECT_FALSE(config->moe.ep_size);
  EXPECT_TRUE(config->mode(Mode::on).add_flags.empty());
}

TEST(Config, EverythingIsRead) {
  const auto config = parse_config(
      "// comment\n" +
          with(R"("command": ["/p/python3", "-m", "sglang.launch_server"], "user": "llm",
                  "environment": {"A": "b"})",
               R"("kernel": {"device": "cpu", "archs": ["90"], "cuda_home": "/c", "nsplit": "16",
                             "defrag_sort": false}, /* modes */
                  "modes": {"on": {"mem_fraction_static": 0.9, "add_flags": ["--x", "1"],
                                   "remove_flags": ["--y"]}},
                  "deadlines": {"healthy_s": 5, "stop_s": 6, "stable_s": 0, "drain_s": 7},
                  "gate": {"gpu_free_mib": 512, "golden": {"url": "http://127.0.0.1:1/generate",
                           "request": {"text": "x", "n": 1}, "expect": "y"}},
                  "validate": {"min_compares": 10, "max_ulp": 2, "mean_ulp": 0.25},
                  "agent": {"listen": "0.0.0.0:1"}, "moe": {"ep_size": null})"),
      "c");
  ASSERT_TRUE(config) << config.error().what;
  EXPECT_TRUE(config->engine.whole_unit());
  EXPECT_EQ(config->engine.environment.at("A"), "b");
  EXPECT_EQ(config->kernel.device, KernelDevice::cpu);
  EXPECT_EQ(config->kernel.nsplit, "16");
  EXPECT_EQ(config->mode(Mode::on).mem_fraction_static, 0.9);
  EXPECT_EQ(config->mode(Mode::on).remove_flags, std::vector<std::string>{"--y"});
  EXPECT_EQ(config->deadlines.stable_s.count(), 0);
  EXPECT_EQ(config->deadlines.drain_s.count(), 7);
  EXPECT_EQ(config->gate.gpu_free_mib, 512u);
  ASSERT_TRUE(config->gate.golden);
  EXPECT_EQ(config->gate.golden->request, R"({"n":1,"text":"x"})");
  EXPECT_EQ(config->validate.min_compares, 10u);
}

struct Bad {
  std::string text, what, hint;
};

TEST(Config, EachFaultIsNamedWithItsPath) {
  for (const Bad& bad : {
           Bad{"{", "c: line 1, column 2: not valid JSON", ""},
           Bad{"{\n  \"engine\": {,}\n}", "c: line 2, column 14: not valid JSON", ""},
           Bad{"[]", "the document is not an object", ""},
           Bad{"{}", "engine is missing", ""},
           Bad{R"({"engine": {"unit": "e.service"}})", "engine.python is missing", ""},
           Bad{with(R"("helth_url": "x")"), "unknown key engine.helth_url",
               "did you mean engine.health_url?"},
           Bad{with(R"("a\nb\u001b": "x")"), "unknown key engine.a?b?", ""},
           Bad{with("", R"("k\n": 1, "k\n": 1)"), "c: key \"k?\" is given twice", ""},
           Bad{with("", R"("kernal": {})"), "unknown key kernal", "did you mean kernel?"},
           Bad{with("", R"("modes": {"onn": {}})"), "unknown key modes.onn", "modes.on"},
           Bad{with("", R"("modes": {"on": {"mem_fraction": 0.9}})"),
               "unknown key modes.on.mem_fraction", ""},
           Bad{with(R"("ranks": 9)"), "given twice", ""},
           Bad{with("", R"("deadlines": {"healthy_s": 1e999})"),
               "c: a number is too large: '1e999'", ""},
           Bad{with("", R"("modes": {"on": {"mem_fraction_static": 1.5}})"),
               "modes.on.mem_fraction_static is not between 0 and 1", ""},
           Bad{with("", R"("modes": {"on": {"add_flags": ["x"]}})"), "modes.on.add_flags", ""},
           Bad{with("", R"("modes": {"on": {"add_flags": ["--mem-fraction-static", "1"]}})"),
               "holds --mem-fraction-static", "use mem_fraction_static"},
           Bad{with("", R"("modes": {"on": {"remove_flags": ["--x", "1"]}})"),
               "holds '1', which is not a flag's name", ""},
           Bad{with("", R"("kernel": {"device": "gpu"})"), "kernel.device is neither", ""},
           Bad{with("", R"("kernel": {"nsplit": "0"})"), "kernel.nsplit", ""},
           Bad{with("", R"("kernel": {"archs": ["sm_90"]})"), "kernel.archs", ""},
           Bad{with("", R"("deadlines": {"healthy_s": 0})"), "deadlines.healthy_s", ""},
           Bad{with("", R"("deadlines": {"healthy_s": 1.5})"), "is not a whole number", ""},
           Bad{with("", R"("validate": {"max_ulp": -1})"), "validate.max_ulp is not above 0", ""},
           Bad{with("", R"("gate": {"golden": {"url": "x", "request": {}, "expect": "y"}})"),
               "gate.golden.url is not an http", "generate"},
           Bad{with("", R"("gate": {"golden": {"url": "http://x", "request": 1, "expect": "y"}})"),
               "gate.golden.request is not an object", ""},
           Bad{with("", R"("gate": {"golden": {}})"), "gate.golden.url is missing", ""},
           Bad{with("", R"("agent": {"web_config": "web.yml"})"),
               "agent.web_config is not an absolute path", ""},
           Bad{with("", R"("agent": {"listen": "9817"})"),
               "agent.listen is neither HOST:PORT nor unix:/PATH", ""},
           Bad{with(R"("user": "x")"), "engine.user is given without engine.command", ""},
           Bad{with(R"("command": ["python3"])"), "does not begin with an absolute path", ""},
           Bad{with(R"("command": ["/p"], "environment": {"KDTREE_VERIFY": "on"})"),
               "engine.environment.KDTREE_VERIFY is set by kdtree itself", ""},
           Bad{R"({"engine": {"unit": "../e.service", "python": "/p", "health_url": "http://x",
                   "ranks": 1}})",
               "engine.unit is not the name of a service", ""},
           Bad{R"({"engine": {"unit": "e.service", "python": "/p\n", "health_url": "http://x",
                   "ranks": 1}})",
               "engine.python holds a control character", ""},
           Bad{R"({"engine": {"unit": "e.service", "python": "/p", "health_url": "file:///x",
                   "ranks": 65}})",
               "engine.ranks is not a whole number from 1 to 64", ""},
       }) {
    const auto config = parse_config(bad.text, "c");
    ASSERT_FALSE(config) << bad.text;
    EXPECT_EQ(config.error().code, ExitCode::usage);
    EXPECT_NE(config.error().what.find(bad.what), std::string::npos) << config.error().what;
    EXPECT_NE(config.error().hint.find(bad.hint), std::string::npos) << config.error().hint;
  }
}

TEST(Config, FileHasToBeThereAndRootsOnly) {
  PlanFolder folder;
  auto missing = load_config(folder.root());
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ExitCode::usage);
  EXPECT_NE(missing.error().what.find("does not exist"), std::string::npos);
  folder.write("etc/kdtree/kdtree.json", with(""));
  ::chmod((folder / "etc/kdtree/kdtree.json").c_str(), 0644);
  EXPECT_TRUE(load_config(folder.root()));
  ::chmod((folder / "etc/kdtree/kdtree.json").c_str(), 0666);
  auto open = load_config(folder.root());
  ASSERT_FALSE(open);
  EXPECT_NE(open.error().what.find("can be written by group or others"), std::string::npos);
  std::filesystem::remove(folder / "etc/kdtree/kdtree.json");
  std::filesystem::create_symlink("/etc/passwd", folder / "etc/kdtree/kdtree.json");
  EXPECT_NE(load_config(folder.root()).error().what.find("symlink"), std::string::npos);
}

TEST(Nearest, IsCloseOrNothing) {
  EXPECT_EQ(nearest("helth", {"health", "unit"}), "health");
  EXPECT_EQ(nearest("zzz", {"health", "unit"}), "");
}

TEST(Config, ACommaTooManyIsNamed) {
  for (const std::string text : {"{\"engine\": {},\n}", "{\"a\": [1, 2, ]}"}) {
    const auto config = parse_config(text, "here");
    ASSERT_FALSE(config);
    EXPECT_NE(config.error().what.find("not valid JSON: a comma before the closing bracket"),
              std::string::npos)
        << config.error().what;
  }
  EXPECT_EQ(parse_config("{]", "here").error().what.find("comma"), std::string::npos);
}

TEST(Config, TheDocumentGivesTheSameConfigurationAgain) {
  const std::string text = R"({"engine": {"unit": "e.service", "python": "/p",  // mine
      "health_url": "http://127.0.0.1:1/", "ranks": 3}, "validate": {"mean_ulp": 0.31}})";
  const auto first = parse_config(text, "here");
  ASSERT_TRUE(first) << first.error().what;
  const auto second = parse_config(first->document, "there");
  ASSERT_TRUE(second) << second.error().what;
  EXPECT_EQ(second->document, first->document);
  EXPECT_EQ(second->engine.ranks, 3);
  EXPECT_EQ(second->validate.mean_ulp, 0.31);
}

}  // namespace
}  // namespace kdtree
