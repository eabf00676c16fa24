// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "agent/unitfile/unit_file.h"

namespace kdtree {
namespace {

constexpr std::string_view kUnit =
    "# head\n"
    "[Unit]\n"
    "Description = An engine  \n"
    "\n"
    "[Service]\n"
    "ExecStart=/bin/a \\\n"
    "  --one 1 \\\n"
    "# in between\n"
    "  --two\n"
    "; other\n"
    "Environment=A=1\n"
    "Environment=\n"
    "Environment=B=2\n"
    "junk without equals\n"
    "[Install]\n"
    "WantedBy=multi-user.target";

TEST(UnitFile, TextComesBackByteForByte) {
  for (const std::string& text :
       {std::string(kUnit), std::string(kUnit) + "\n", std::string(), std::string("\n\n"),
        std::string("\xEF\xBB\xBF[Service]\nA=b\\\n"), std::string("[A]\nX=1 \\")}) {
    const auto file = UnitFile::parse(text, "x");
    ASSERT_TRUE(file);
    EXPECT_EQ(file->text(), text);
  }
}

TEST(UnitFile, ContinuationsAreJoinedAndCommentsInThemSkipped) {
  const auto file = UnitFile::parse(kUnit, "x");
  ASSERT_TRUE(file);
  EXPECT_EQ(file->values("Service", "ExecStart"),
            std::vector<std::string>{"/bin/a    --one 1    --two"});
  EXPECT_EQ(file->values("Unit", "Description"), std::vector<std::string>{"An engine"});
  EXPECT_EQ(file->values("Service", "Environment"), (std::vector<std::string>{"A=1", "", "B=2"}));
  EXPECT_TRUE(file->values("Unit", "ExecStart").empty());
}

TEST(UnitFile, EmptyValueForgetsAcrossFiles) {
  std::vector<UnitFile> files;
  files.push_back(UnitFile::parse("[Service]\nExecStart=/a\n", "a").value());
  files.push_back(UnitFile::parse("[Service]\nExecStart=\nExecStart=/b\n", "b").value());
  EXPECT_EQ(effective_values(files, "Service", "ExecStart"), std::vector<std::string>{"/b"});
}

TEST(UnitFile, BrokenOnesAreErrorsWithTheirLine) {
  const auto file = UnitFile::parse("[Unit]\n[Service\n", "/etc/x.service");
  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().what, "/etc/x.service, line 2: a section without its closing bracket");
  EXPECT_FALSE(UnitFile::parse(std::string_view("[A]\nX=\0y\n", 9), "x"));
}

}  // namespace
}  // namespace kdtree
