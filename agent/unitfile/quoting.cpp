// SPDX-License-Identifier: Apache-2.0
#include "agent/unitfile/quoting.h"

#include <array>
#include <charconv>
#include <cstdint>
#include <optional>

namespace kdtree {
namespace {

constexpr std::string_view kBlanks = " \t\n\r";

bool is_blank(char c) { return kBlanks.find(c) != std::string_view::npos; }
bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_name_char(char c) { return is_name_start(c) || (c >= '0' && c <= '9'); }

void append_utf8(std::string& text, std::uint32_t code) {
  const auto byte = [&](std::uint32_t value) { text += static_cast<char>(value); };
  if (code < 0x80) return byte(code);
  if (code < 0x800) {
    byte(0xC0 | code >> 6);
  } else {
    if (code < 0x10000) {
      byte(0xE0 | code >> 12);
    } else {
      byte(0xF0 | code >> 18);
      byte(0x80 | (code >> 12 & 0x3F));
    }
    byte(0x80 | (code >> 6 & 0x3F));
  }
  byte(0x80 | (code & 0x3F));
}

std::optional<std::uint32_t> digits(std::string_view rest, std::size_t count, int base) {
  if (rest.size() < count) return std::nullopt;
  std::uint32_t value = 0;
  const auto parsed = std::from_chars(rest.data(), rest.data() + count, value, base);
  if (parsed.ec != std::errc{} || parsed.ptr != rest.data() + count) return std::nullopt;
  return value;
}

// Reads the escape whose backslash is just before `rest`, returns how many characters it took; 0 =
// not an escape that systemd knows: it keeps the backslash then.
std::size_t read_escape(std::string_view rest, std::string& text) {
  constexpr std::string_view kFrom = "abfnrtv\\\"'s";
  constexpr std::string_view kTo = "\a\b\f\n\r\t\v\\\"' ";
  if (rest.empty()) return 0;
  if (const auto at = kFrom.find(rest[0]); at != std::string_view::npos) {
    text += kTo[at];
    return 1;
  }
  const auto number = [&](std::size_t skip, std::size_t count, int base, bool byte) -> std::size_t {
    const auto code = digits(rest.substr(skip), count, base);
    if (!code || *code == 0 || (byte ? *code > 0xFF : *code > 0x10FFFF)) return 0;
    if (byte)
      text += static_cast<char>(*code);
    else
      append_utf8(text, *code);
    return skip + count;
  };
  switch (rest[0]) {
    case 'x':
      return number(1, 2, 16, true);
    case 'u':
      return number(1, 4, 16, false);
    case 'U':
      return number(1, 8, 16, false);
    default:
      return number(0, 3, 8, true);
  }
}

std::string doubled(std::string_view text, std::string_view which) {
  std::string result;
  for (char c : text) {
    if (which.find(c) != std::string_view::npos) result += c;
    result += c;
  }
  return result;
}

}  // namespace

Result<std::vector<Word>> split_words(std::string_view value) {
  std::vector<Word> words;
  std::size_t at = 0;
  while (true) {
    while (at < value.size() && is_blank(value[at])) ++at;
    if (at == value.size()) return words;
    Word word;
    const std::size_t begin = at;
    char quote = 0;
    for (; at < value.size() && (quote != 0 || !is_blank(value[at])); ++at) {
      const char c = value[at];
      if (c == '\\') {
        if (at + 1 == value.size())
          return fail(ExitCode::usage, "a backslash at the end of: " + shown(value));
        const std::size_t took = read_escape(value.substr(at + 1), word.text);
        if (took == 0) word.text += {c, value[at + 1]};
        at += took == 0 ? 1 : took;
      } else if (quote != 0 && c == quote) {
        quote = 0;
      } else if (quote == 0 && (c == '"' || c == '\'')) {
        quote = c;
      } else {
        word.text += c;
      }
    }
    if (quote != 0) return fail(ExitCode::usage, "a quote is left open in: " + shown(value));
    word.raw = value.substr(begin, at - begin);
    words.push_back(std::move(word));
  }
}

std::string quote_word(std::string_view text) {
  bool plain = !text.empty() && text != ";";
  std::string quoted = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte <= 0x20 || byte == 0x7f || c == '"' || c == '\'' || c == '\\') plain = false;
    if (c == '"' || c == '\\') {
      quoted += {'\\', c};
    } else if (c == '\n') {
      quoted += "\\n";
    } else if (c == '\t') {
      quoted += "\\t";
    } else if (byte < 0x20 || byte == 0x7f) {
      static constexpr char kHex[] = "0123456789abcdef";
      quoted += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    } else {
      quoted += c;
    }
  }
  return plain ? std::string(text) : quoted + "\"";
}

std::string quote_for_exec(std::string_view literal) { return quote_word(doubled(literal, "%$")); }

std::string quote_for_setting(std::string_view literal) {
  return quote_word(doubled(literal, "%"));
}

std::string escape_specifiers(std::string_view literal) { return doubled(literal, "%"); }

bool has_specifier(std::string_view text) {
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] != '%') continue;
    if (at + 1 == text.size() || text[at + 1] != '%') return true;
    ++at;
  }
  return false;
}

Result<std::string> literal_of_exec(std::string_view text) {
  std::string literal;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    literal += c;
    if (c != '%' && c != '$') continue;
    if (at + 1 < text.size() && text[at + 1] == c) {
      ++at;
    } else if (c == '%' ||
               (at + 1 < text.size() && (text[at + 1] == '{' || is_name_start(text[at + 1])))) {
      return fail(ExitCode::usage, "'" + shown(text) + "' depends on " +
                                       (c == '%' ? "a specifier" : "the environment"));
    }
  }
  return literal;
}

std::string shown(std::string_view text) {
  constexpr std::size_t kMost = 300;
  std::string line(text.substr(0, kMost));
  for (char& c : line)
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') c = '?';
  if (text.size() > kMost) line += "...";
  return line;
}

std::vector<std::string> referenced_variables(std::string_view text) {
  std::vector<std::string> names;
  for (std::size_t at = 0; at + 1 < text.size(); ++at) {
    if (text[at] != '$') continue;
    if (text[at + 1] == '$') {
      ++at;
      continue;
    }
    std::size_t begin = at + 1;
    if (text[begin] == '{') ++begin;
    std::size_t end = begin;
    while (end < text.size() && is_name_char(text[end])) ++end;
    if (end > begin && is_name_start(text[begin]))
      names.emplace_back(text.substr(begin, end - begin));
  }
  return names;
}

}  // namespace kdtree
