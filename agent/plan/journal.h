// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "agent/util/result.h"
#include "agent/util/root.h"
#include "agent/util/unique_fd.h"

// The write-ahead journal of one change: /var/lib/kdtree/journal/active, one record a line,
//   <first 16 hex digits of sha256 of the rest> <JSON object with "is">
// each synced before what it announces is done. A change that ended leaves it renamed to
// <time>-<verb>.
namespace kdtree {

inline constexpr int kJournalFormat = 1;
inline constexpr std::size_t kJournalsKept = 20;

class Journal {
 public:
  // Starts a journal. Errors: refused: one is there already, no space, no right.
  static Result<Journal> begin(const Root& root, nlohmann::ordered_json first);
  // Goes on writing the one that is there.
  static Result<Journal> resume(const Root& root);

  // Appends one record, durably.
  Status add(const nlohmann::ordered_json& record);
  // The change has ended: puts the journal away as <name>, keeps the newest kJournalsKept.
  Status put_away(const std::string& name);

 private:
  Journal(Root root, UniqueFd fd) : root_(std::move(root)), fd_(std::move(fd)) {}
  Root root_;
  UniqueFd fd_;
};

// The whole records of the active journal, in order; a torn line (cut off in the middle of writing
// it) is left out. No journal, or one that was cut off in its first record: none. Errors: refused:
// unreadable, of a newer format, or damaged: there are records, and the first is not whole, so what
// the change was to be is not known.
Result<std::vector<nlohmann::json>> read_journal(const Root& root);

// A journal without a whole first record: its change had not begun. Removes it.
Status discard_journal(const Root& root);
bool journal_is_there(const Root& root);

}  // namespace kdtree
