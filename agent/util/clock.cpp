// SPDX-License-Identifier: Apache-2.0
#include "agent/util/clock.h"

#include <charconv>
#include <ctime>

#include "agent/util/file.h"

namespace kdtree {

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts)};
}

std::uint64_t boottime_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000u +
         static_cast<std::uint64_t>(now.tv_nsec);
}

std::string boot_id(const Root& root) {
  auto text = read_file(root("/proc/sys/kernel/random/boot_id"), 256);
  if (!text) return {};
  return text->substr(0, text->find_last_not_of(" \n") + 1);
}

std::optional<std::uint64_t> process_start_ticks(pid_t pid, const Root& root) {
  auto text = read_file(root("/proc/" + std::to_string(pid) + "/stat"), 4096);
  if (!text) return std::nullopt;
  // Field 2, the name, may hold anything; the fields after its last ')' are plain.
  std::size_t at = text->rfind(')');
  if (at == std::string::npos || at + 2 >= text->size()) return std::nullopt;
  const char state = (*text)[at + 2];
  if (state == 'Z' || state == 'X') return std::nullopt;
  for (int field = 2; field < 22; ++field) {
    at = text->find(' ', at + 1);
    if (at == std::string::npos) return std::nullopt;
  }
  std::uint64_t ticks = 0;
  const auto parsed = std::from_chars(text->data() + at + 1, text->data() + text->size(), ticks);
  if (parsed.ec != std::errc{}) return std::nullopt;
  return ticks;
}

}  // namespace kdtree
