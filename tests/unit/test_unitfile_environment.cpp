// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "agent/unitfile/environment.h"

namespace kdtree {
namespace {

using Map = std::map<std::string, std::string>;

TEST(EnvironmentFile, AsSystemdReadsIt) {
  EXPECT_EQ(parse_environment_file("# comment\n"
                                   "; comment\n"
                                   "A=plain value  \n"
                                   "  B = spaced\n"
                                   "C='single $x \\n'\n"
                                   "D=\"double \\\" \\$ \\n\"\n"
                                   "E=con\\\ntinued\n"
                                   "F=\"a\"'b'c\n"
                                   "1BAD=x\n"
                                   "no equals\n"
                                   "G=\n"
                                   "H=\"kept  \"\n"
                                   "I=last"),
            (Map{{"A", "plain value"},
                 {"B", "spaced"},
                 {"C", "single $x \\n"},
                 {"D", "double \" $ \\n"},
                 {"E", "continued"},
                 {"F", "abc"},
                 {"G", ""},
                 {"H", "kept  "},
                 {"I", "last"}}));
}

TEST(EnvironmentFile, QuotedValuesComeBack) {
  for (std::string value : {"/a:/b c", "q\"u`o$t\\e", "", "it's"}) {
    const auto quoted = quote_for_environment_file(value);
    ASSERT_TRUE(quoted);
    EXPECT_EQ(parse_environment_file("X=" + *quoted + "\n"), (Map{{"X", value}}));
  }
  EXPECT_FALSE(quote_for_environment_file("a\nb"));
}

TEST(Environment, LaterAssignmentWins) {
  std::vector<UnitFile> files;
  files.push_back(
      UnitFile::parse("[Service]\nEnvironment=A=1 \"B=two words\"\nEnvironment=PYTHONPATH=%h/x\n",
                      "a")
          .value());
  files.push_back(UnitFile::parse("[Service]\nEnvironment='A=3'\n", "b").value());
  const auto environment = environment_of(files);
  ASSERT_TRUE(environment);
  EXPECT_EQ(*environment, (Map{{"A", "3"}, {"B", "two words"}, {"PYTHONPATH", "%h/x"}}));
}

TEST(PathList, EmptyPartsAndCopiesAreLeftOut) {
  EXPECT_EQ(compose_path_list("/k", ""), "/k");
  EXPECT_EQ(compose_path_list("/k", "/a:/b"), "/k:/a:/b");
  EXPECT_EQ(compose_path_list("/k", ":/a::/k:/b:"), "/k:/a:/b");
}

}  // namespace
}  // namespace kdtree
