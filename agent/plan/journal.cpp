// SPDX-License-Identifier: Apache-2.0
#include "agent/plan/journal.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <tuple>

#include "agent/util/atomic_file.h"
#include "agent/util/file.h"
#include "agent/util/sha256.h"

namespace kdtree {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::size_t kDigits = 16;
constexpr std::size_t kMaxJournalBytes = 64u << 20;

fs::path folder(const Root& root) { return root(paths::kState) / "journal"; }
fs::path active(const Root& root) { return folder(root) / "active"; }

Result<UniqueFd> open_journal(const fs::path& path, int flags) {
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_APPEND | O_NOFOLLOW | O_CLOEXEC | flags, 0600));
  if (fd) return fd;
  if (errno == EEXIST)
    return fail(ExitCode::refused, path.string() + " is there: a change was cut off",
                "kdtreectl recover ends it");
  return tl::make_unexpected(io_error("opening", path, errno));
}

Status write_line(int fd, const fs::path& path, std::string_view line) {
  while (!line.empty()) {
    const ssize_t done = ::write(fd, line.data(), line.size());
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return tl::make_unexpected(io_error("writing", path, errno));
    line.remove_prefix(static_cast<std::size_t>(done));
  }
  if (::fsync(fd) != 0) return tl::make_unexpected(io_error("syncing", path, errno));
  return {};
}

Status keep_newest(const Root& root) {
  std::vector<fs::path> finished;
  std::error_code error;
  for (fs::directory_iterator it(folder(root), error), end; !error && it != end;
       it.increment(error))
    if (it->path() != active(root)) finished.push_back(it->path());
  std::sort(finished.begin(), finished.end());
  for (std::size_t i = 0; i + kJournalsKept < finished.size(); ++i)
    KDTREE_TRY(remove_file(finished[i]));
  return {};
}

// What is read of a record has the type that was written.
bool is_record(const json& record) {
  if (!record.is_object() || !record.contains("is")) return false;
  const auto holds = [&](const char* key, auto right) {
    const auto member = record.find(key);
    return member == record.end() || right(*member);
  };
  const auto text = [](const json& value) { return value.is_string(); };
  const auto number = [](const json& value) { return value.is_number_integer(); };
  return holds("is", text) && holds("time", text) && holds("boot_id", text) &&
         holds("format", number) && holds("step", number);
}

}  // namespace

Result<Journal> Journal::begin(const Root& root, ordered_json first) {
  KDTREE_TRY(make_directories(root(paths::kState)));
  KDTREE_TRY(make_directories(folder(root), 0700));
  KDTREE_TRY_ASSIGN(auto fd, open_journal(active(root), O_CREAT | O_EXCL));
  Journal journal(root, std::move(fd));
  first["is"] = "begin";
  first["format"] = kJournalFormat;
  auto begun = journal.add(first);
  if (begun) begun = sync_directory(folder(root));
  if (begun) return journal;
  ::unlink(active(root).c_str());
  return tl::make_unexpected(std::move(begun).error());
}

Result<Journal> Journal::resume(const Root& root) {
  KDTREE_TRY_ASSIGN(auto fd, open_journal(active(root), 0));
  Journal journal(root, std::move(fd));
  // A torn last line must not swallow the next record.
  KDTREE_TRY(write_line(journal.fd_.get(), active(root), "\n"));
  return journal;
}

Status Journal::add(const ordered_json& record) {
  const std::string text = record.dump(-1, ' ', false, json::error_handler_t::replace);
  const off_t end = ::lseek(fd_.get(), 0, SEEK_END);
  auto added =
      write_line(fd_.get(), active(root_), sha256_hex(text).substr(0, kDigits) + " " + text + "\n");
  // What is not known to last must not be read either: a "passed" that is undone all the same.
  if (!added && end >= 0) std::ignore = ::ftruncate(fd_.get(), end);
  return added;
}

Status Journal::put_away(const std::string& name) {
  fd_.reset();
  if (::rename(active(root_).c_str(), (folder(root_) / name).c_str()) != 0)
    return tl::make_unexpected(io_error("renaming", active(root_), errno));
  KDTREE_TRY(sync_directory(folder(root_)));
  return keep_newest(root_);
}

Result<std::vector<json>> read_journal(const Root& root) {
  std::vector<json> records;
  KDTREE_TRY_ASSIGN(auto text, read_file_if_there(active(root), kMaxJournalBytes));
  if (!text) return records;
  std::size_t at = 0;
  int lines = 0;
  while (at < text->size()) {
    const std::size_t newline = text->find('\n', at);
    if (newline == std::string::npos) break;
    const std::string line = text->substr(at, newline - at);
    at = newline + 1;
    if (line.empty()) continue;
    ++lines;
    if (line.size() <= kDigits + 1 ||
        sha256_hex(std::string_view(line).substr(kDigits + 1)).substr(0, kDigits) !=
            line.substr(0, kDigits)) {
      // Only a torn write at a place where recovery went on later may be followed by more.
      continue;
    }
    auto record = json::parse(line.substr(kDigits + 1), nullptr, false);
    if (!is_record(record)) continue;
    records.push_back(std::move(record));
  }
  if (records.empty() ? lines > 1 : records[0].value("is", "") != "begin")
    return fail(ExitCode::refused,
                active(root).string() + " is damaged: its change can't be undone from it",
                "see runbooks/rollback.md, \"The journal is damaged\"");
  if (!records.empty() && records[0].value("format", 0) > kJournalFormat)
    return fail(ExitCode::refused, active(root).string() + " was written by a newer kdtreectl",
                "use that one, or a newer one, to end the change");
  return records;
}

Status discard_journal(const Root& root) { return remove_file(active(root)); }

bool journal_is_there(const Root& root) {
  std::error_code error;
  return fs::exists(fs::symlink_status(active(root), error));
}

}  // namespace kdtree
