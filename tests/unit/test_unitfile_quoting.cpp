// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "agent/unitfile/quoting.h"

namespace kdtree {
namespace {

std::vector<std::string> texts(std::string_view value) {
  auto words = split_words(value);
  EXPECT_TRUE(words) << (words ? "" : words.error().what);
  std::vector<std::string> result;
  if (words)
    for (const auto& word : *words) result.push_back(word.text);
  return result;
}

using Texts = std::vector<std::string>;

TEST(SplitWords, BlanksAndQuotes) {
  EXPECT_EQ(texts("  /bin/a  b\tc "), (Texts{"/bin/a", "b", "c"}));
  EXPECT_EQ(texts("\"a b\" 'c d' x\"y z\"w"), (Texts{"a b", "c d", "xy zw"}));
  EXPECT_EQ(texts("\"\" ''"), (Texts{"", ""}));
  EXPECT_EQ(texts(""), Texts{});
}

TEST(SplitWords, Escapes) {
  EXPECT_EQ(texts("a\\x20b \\\"q\\\" \\s \\t \\101 \\u00e9 \\U0001F600"),
            (Texts{"a b", "\"q\"", " ", "\t", "A", "\xC3\xA9", "\xF0\x9F\x98\x80"}));
  EXPECT_EQ(texts("'a\\'b'"), Texts{"a'b"});
  EXPECT_EQ(texts("\\q \\x0g \\000"), (Texts{"\\q", "\\x0g", "\\000"})) << "unknown ones stay";
}

TEST(SplitWords, RawIsWhatStoodThere) {
  const auto words = split_words("  a\"b c\"  '%i' ${X} ");
  ASSERT_TRUE(words);
  ASSERT_EQ(words->size(), 3u);
  EXPECT_EQ((*words)[0].raw, "a\"b c\"");
  EXPECT_EQ((*words)[1].raw, "'%i'");
  EXPECT_EQ((*words)[1].text, "%i");
  EXPECT_EQ((*words)[2].raw, "${X}");
}

TEST(SplitWords, OpenQuoteAndLoneBackslashAreErrors) {
  EXPECT_FALSE(split_words("a \"b"));
  EXPECT_FALSE(split_words("a 'b"));
  EXPECT_FALSE(split_words("a \\"));
}

TEST(Quote, ComesBackTheSame) {
  for (std::string_view literal :
       {"plain", "", "with blank", "quo\"te", "apo'strophe", "back\\slash", "100%", "$HOME", "${X}",
        "tab\there", "line\nbreak", "\x01\x7f", ";", R"({"a": [1, "$b %c"]})", "\xC3\xA9"}) {
    const std::string raw = quote_for_exec(literal);
    const auto words = split_words(raw);
    ASSERT_TRUE(words) << raw;
    ASSERT_EQ(words->size(), 1u) << raw;
    const auto back = literal_of_exec((*words)[0].text);
    ASSERT_TRUE(back) << raw;
    EXPECT_EQ(*back, literal) << raw;
  }
  EXPECT_EQ(quote_for_exec("--a=1.5"), "--a=1.5");
  EXPECT_EQ(quote_for_exec("50%"), "50%%");
  EXPECT_EQ(quote_for_setting("A=$x 5%"), "\"A=$x 5%%\"");
}

TEST(Literal, RefusesWhatNeedsExpansion) {
  EXPECT_FALSE(literal_of_exec("%i"));
  EXPECT_FALSE(literal_of_exec("$A"));
  EXPECT_FALSE(literal_of_exec("x${A}"));
  EXPECT_EQ(literal_of_exec("a$").value(), "a$");
  EXPECT_EQ(literal_of_exec("$$A%%").value(), "$A%");
}

TEST(Specifiers, Found) {
  EXPECT_TRUE(has_specifier("a%i"));
  EXPECT_FALSE(has_specifier("a%%i"));
  EXPECT_TRUE(has_specifier("%%%h"));
}

TEST(Variables, Found) {
  EXPECT_EQ(referenced_variables("$A x${B_1}y $$C $1 ${"), (Texts{"A", "B_1"}));
}

}  // namespace
}  // namespace kdtree
