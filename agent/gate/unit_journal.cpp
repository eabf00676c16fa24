// SPDX-License-Identifier: Apache-2.0
#include "agent/gate/unit_journal.h"

#include <algorithm>
#include <cstring>
#include <string_view>

namespace kdtree {

std::string printable(std::string_view line, std::size_t most) {
  auto feed = line.find_last_of('\r', line.empty() ? 0 : line.size() - 1);
  if (feed != line.npos && feed + 1 < line.size()) line.remove_prefix(feed + 1);
  std::string text(line.substr(0, most));
  // A UTF-8 sequence cut in two is dropped whole.
  if (line.size() > most)
    while (!text.empty() && (static_cast<unsigned char>(line[text.size()]) & 0xC0) == 0x80)
      text.pop_back();
  std::ranges::replace_if(
      text, [](unsigned char c) { return c < 0x20 || c == 0x7f; }, ' ');
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

Result<UnitJournal> UnitJournal::open(const Root& root, const std::string& invocation_id) {
  if (!root.is_host()) return fail(ExitCode::refused, "no journal is read under another root");
  if (invocation_id.empty()) return fail(ExitCode::refused, "the unit has no invocation id");
  sd_journal* raw = nullptr;
  int r = sd_journal_open(&raw, SD_JOURNAL_LOCAL_ONLY);
  if (r < 0)
    return fail(ExitCode::refused, std::string("cannot open the journal: ") + std::strerror(-r));
  UnitJournal journal(raw);
  const std::string match = "_SYSTEMD_INVOCATION_ID=" + invocation_id;
  r = sd_journal_add_match(raw, match.c_str(), match.size());
  if (r >= 0) r = sd_journal_seek_head(raw);
  if (r < 0)
    return fail(ExitCode::refused, std::string("cannot read the journal: ") + std::strerror(-r));
  sd_journal_set_data_threshold(raw, 4096);
  return journal;
}

std::string UnitJournal::line() const {
  const void* data = nullptr;
  std::size_t size = 0;
  if (sd_journal_get_data(journal_.get(), "MESSAGE", &data, &size) < 0) return {};
  std::string_view text(static_cast<const char*>(data), size);
  constexpr std::string_view kField = "MESSAGE=";
  if (text.starts_with(kField)) text.remove_prefix(kField.size());
  return printable(text);
}

std::vector<std::string> UnitJournal::read_new(std::size_t most) {
  std::vector<std::string> lines;
  sd_journal_process(journal_.get());
  while (lines.size() < most && sd_journal_next(journal_.get()) > 0)
    if (auto text = line(); !text.empty()) lines.push_back(std::move(text));
  return lines;
}

std::vector<std::string> UnitJournal::last_lines(const Root& root, const std::string& invocation_id,
                                                 std::size_t count) {
  std::vector<std::string> lines;
  auto journal = open(root, invocation_id);
  if (!journal || sd_journal_seek_tail(journal->journal_.get()) < 0) return lines;
  while (lines.size() < count && sd_journal_previous(journal->journal_.get()) > 0)
    if (auto text = journal->line(); !text.empty()) lines.push_back(std::move(text));
  std::ranges::reverse(lines);
  return lines;
}

}  // namespace kdtree
