// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "agent/util/result.h"

// How systemd splits and quotes command lines and assignments (systemd.service(5) "Command lines",
// systemd.syntax(7) "Quoting"): words apart by blanks, "..." and '...' around a whole word or in
// the middle of it, C escapes, `%` specifiers expanded when the unit is loaded, `$VAR` and `${VAR}`
// when the command is run.
namespace kdtree {

// One word of a unit file's value. `raw` is what stands in the file, byte for byte, and can be put
// back as it is; `text` is unquoted and unescaped, with `%` and `$` still as written.
struct Word {
  std::string raw;
  std::string text;
  bool operator==(const Word&) const = default;
};

// Errors: usage: an open quote or an escape that systemd doesn't know.
Result<std::vector<Word>> split_words(std::string_view value);

// A literal text as one word of an Exec line: quoted where it has to be, `%` and `$` doubled.
std::string quote_for_exec(std::string_view literal);

// The same for Environment= and other settings without `$`: `%` doubled.
std::string quote_for_setting(std::string_view literal);

// An unquoted text whose `%` and `$` already stand as they are to (a Word::text): quoted only.
std::string quote_word(std::string_view text);

// `%%` for each `%`: for plain values (paths) in settings that know specifiers and no quotes.
std::string escape_specifiers(std::string_view literal);

// Does the text hold `%x` (not `%%`)?
bool has_specifier(std::string_view text);

// What `text` (a Word::text of an Exec line) means if it needs no environment and no specifier:
// `%%` and `$$` undone. Errors: usage where it holds a real `%x` or `$x`.
Result<std::string> literal_of_exec(std::string_view text);

// `text` for a message: one line, at most 300 bytes, control characters as '?'.
std::string shown(std::string_view text);

// Names of the variables that `$VAR` and `${VAR}` in a Word::text refer to.
std::vector<std::string> referenced_variables(std::string_view text);

}  // namespace kdtree
