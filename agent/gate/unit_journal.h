// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <systemd/sd-journal.h>

#include <memory>
#include <string>
#include <vector>

#include "agent/util/result.h"
#include "agent/util/root.h"

namespace kdtree {

// What the processes of one start of a unit (one InvocationID) wrote to the journal.
class UnitJournal {
 public:
  // Errors: refused where there is no journal that we may read. Under another root than "/" there
  // is none.
  static Result<UnitJournal> open(const Root& root, const std::string& invocation_id);

  // Lines since the last call (the first call: since the start), at most `most` at a time. Control
  // characters are replaced, lines cut at 500 bytes. Empty when there is nothing new or the journal
  // can't be read any more.
  std::vector<std::string> read_new(std::size_t most = 2000);

  // The last `count` lines, oldest first; leaves read_new()'s place alone.
  static std::vector<std::string> last_lines(const Root& root, const std::string& invocation_id,
                                             std::size_t count);

 private:
  struct Closer {
    void operator()(sd_journal* journal) const { sd_journal_close(journal); }
  };
  explicit UnitJournal(sd_journal* journal) : journal_(journal) {}
  std::string line() const;

  std::unique_ptr<sd_journal, Closer> journal_;
};

// `line` fit to be shown on a terminal: no control characters, at most `most` bytes.
std::string printable(std::string_view line, std::size_t most = 500);

}  // namespace kdtree
