// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "agent/unitfile/engine_command.h"

namespace kdtree {
namespace {

EngineCommand parsed(std::string_view text) {
  auto command = EngineCommand::parse(text);
  EXPECT_TRUE(command) << text << ": " << (command ? "" : command.error().what);
  return command ? *command : EngineCommand::parse("python3 a.py").value();
}

TEST(EngineCommand, UnderstandsTheUsualFormsAndGivesThemBack) {
  for (std::string_view text :
       {"/opt/sglang/bin/python3 -m sglang.launch_server --model-path /m  --tp 8",
        "/usr/bin/python3.11 -u -B /opt/engine/server.py --port 30000",
        "-/opt/sglang/bin/sglang serve --model-path \"/m odel\" --x=%i $EXTRA",
        "/usr/bin/env A=b HF_HOME=/x  /opt/bin/python -X utf8 -m sglang.launch_server",
        "/usr/bin/numactl --cpunodebind 0 -m 0 /opt/bin/python3 -msglang.launch_server --tp 1",
        "/opt/bin/python3 -Werror -OO /opt/bin/sglang serve --tp 1\t"})
    EXPECT_EQ(parsed(text).text(), text);
}

struct Refusal {
  std::string_view text, what;
};

TEST(EngineCommand, RefusesWhatItCannotUnderstand) {
  for (const Refusal& refusal : {
           Refusal{"/bin/sh -c 'exec python -m sglang.launch_server'", "runs the shell '/bin/sh'"},
           Refusal{"/bin/bash /opt/start.sh", "runs the shell '/bin/bash'"},
           Refusal{"/usr/bin/docker run sglang", "runs '/usr/bin/docker'"},
           Refusal{"/usr/bin/env FOO=1 podman run x", "runs 'podman'"},
           Refusal{"/usr/bin/sudo python3 x.py", "runs '/usr/bin/sudo'"},
           Refusal{"/usr/bin/env PYTHONPATH=/x python3 x.py", "sets PYTHONPATH with env"},
           Refusal{"/usr/bin/env -i python3 x.py", "runs env with '-i'"},
           Refusal{"/usr/bin/env -u KDTREE_VERIFY python3 x.py", "unsets KDTREE_VERIFY"},
           Refusal{"/opt/start.sh", "which kdtree doesn't know"},
           Refusal{"$ENGINE --x", "which kdtree doesn't know"},
           Refusal{"/usr/bin/python3 -c 'import x'", "Python with -c"},
           Refusal{"/usr/bin/python3 -I x.py", "-I, which ignores PYTHONPATH"},
           Refusal{"/usr/bin/python3 -uS x.py", "-S, which ignores sitecustomize"},
           Refusal{"/usr/bin/python3 -m torch.distributed.run x.py", "'torch.distributed.run'"},
           Refusal{"/usr/bin/python3", "without a program"},
           Refusal{"/opt/bin/sglang generate", "'sglang generate'"},
           Refusal{"@/usr/bin/python3 engine x.py", "begins with '@'"},
           Refusal{"/usr/bin/python3 a.py ; /bin/true", "several commands"},
           Refusal{"", "is empty"},
       }) {
    const auto command = EngineCommand::parse(refusal.text);
    ASSERT_FALSE(command) << refusal.text;
    EXPECT_EQ(command.error().code, ExitCode::refused);
    EXPECT_NE(command.error().what.find(refusal.what), std::string::npos) << command.error().what;
    EXPECT_FALSE(command.error().hint.empty()) << refusal.text;
  }
}

TEST(EngineCommand, MemoryFractionInEachWayOfWriting) {
  auto blank = parsed("/p/python3 s.py --mem-fraction-static 0.94 --tp '8'");
  EXPECT_EQ(blank.mem_fraction().value(), 0.94);
  blank.set_mem_fraction(0.9);
  EXPECT_EQ(blank.text(), "/p/python3 s.py --mem-fraction-static 0.9 --tp '8'");

  auto equals = parsed("/p/python3 s.py --mem-fraction-static=0.94 --tp '8'");
  EXPECT_EQ(equals.mem_fraction().value(), 0.94);
  equals.set_mem_fraction(0.885);
  EXPECT_EQ(equals.text(), "/p/python3 s.py --mem-fraction-static=0.885 --tp '8'");

  auto absent = parsed("/p/python3 s.py --tp '8'");
  EXPECT_FALSE(absent.mem_fraction().value());
  absent.set_mem_fraction(0.9);
  EXPECT_EQ(absent.text(), "/p/python3 s.py --tp '8' --mem-fraction-static 0.9");
}

TEST(EngineCommand, MemoryFractionThatIsNoNumber) {
  EXPECT_FALSE(parsed("/p/python3 s.py --mem-fraction-static $F").mem_fraction());
  EXPECT_FALSE(parsed("/p/python3 s.py --mem-fraction-static=").mem_fraction());
  EXPECT_FALSE(parsed("/p/python3 s.py --mem-fraction-static").mem_fraction());
}

TEST(EngineCommand, TheLastOfSeveralCounts) {
  auto command = parsed("/p/python3 s.py --mem-fraction-static 0.5 --mem-fraction-static 0.6");
  EXPECT_EQ(command.mem_fraction().value(), 0.6);
  command.set_mem_fraction(0.7);
  EXPECT_EQ(command.mem_fraction().value(), 0.7);
}

TEST(EngineCommand, AddsReplacesAndRemovesFlags) {
  auto command = parsed("/p/python3 s.py --a 1 2 --b --c=3 --d '%i'");
  command.add_flags({"--a", "9", "--e", "x y", "--c=4"});
  EXPECT_EQ(command.text(), "/p/python3 s.py --a 9 --b --c=4 --d '%i' --e \"x y\"");
  command.remove_flags({"--a", "--c", "--missing"});
  EXPECT_EQ(command.text(), "/p/python3 s.py --b --d '%i' --e \"x y\"");
  command.add_flags({"--f", "50%", "$x"});
  EXPECT_EQ(command.text(), "/p/python3 s.py --b --d '%i' --e \"x y\" --f 50%% $$x");
}

TEST(EngineCommand, AVariableBehindAValueStays) {
  auto command = parsed("/p/python3 s.py --mem-fraction-static 0.94 $EXTRA");
  command.set_mem_fraction(0.9);
  EXPECT_EQ(command.text(), "/p/python3 s.py --mem-fraction-static 0.9 $EXTRA");
  auto flags = parsed("/p/python3 s.py --a 1 $EXTRA --b $MORE");
  EXPECT_TRUE(flags.check_editable({"--a", "--c"}));
  EXPECT_FALSE(flags.check_editable({"--b"}));
  flags.remove_flags({"--a"});
  EXPECT_EQ(flags.text(), "/p/python3 s.py $EXTRA --b $MORE");
}

TEST(EngineCommand, FlagsOfPythonItselfAreNotTouched) {
  auto command = parsed("/p/python3 -X utf8 s.py --x");
  command.remove_flags({"--x", "-X"});
  EXPECT_EQ(command.text(), "/p/python3 -X utf8 s.py");
}

TEST(EngineCommand, ARefusalIsOneLineWhateverTheWordsHold) {
  for (const std::string_view text :
       {R"("/p/a\nb" -m x)", R"(/p/python3 -m "x\ny")", "/p/python3 \"a\\x1bb"}) {
    const auto command = EngineCommand::parse(text);
    ASSERT_FALSE(command) << text;
    EXPECT_EQ(command.error().what.find_first_of("\n\x1b"), std::string::npos) << text;
  }
}

TEST(EngineCommand, NamesTheVariablesThatMayHideFlags) {
  EXPECT_EQ(parsed("/p/python3 s.py $OPTS --x ${Y}").variables(),
            (std::vector<std::string>{"OPTS", "Y"}));
}

TEST(EngineCommand, ValueOfTheLastFlagThatCounts) {
  const auto value = [](const std::string& flags, const std::vector<std::string>& names) {
    return EngineCommand::parse("/p/python3 -m sglang.launch_server " + flags)->value_of(names);
  };
  EXPECT_EQ(value("--tp-size 2 --x", {"--tp-size"}), "2");
  EXPECT_EQ(value("--tp-size=2 --tp 4 --tp-size '8'", {"--tp-size", "--tp"}), "8");
  EXPECT_EQ(value("--tp-size 8 --tp=4", {"--tp-size", "--tp"}), "4");
  EXPECT_EQ(value("--tp-size", {"--tp-size"}), "");
  EXPECT_EQ(value("--tp-size-x 3", {"--tp-size"}), std::nullopt);
}

}  // namespace
}  // namespace kdtree
