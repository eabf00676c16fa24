// SPDX-License-Identifier: Apache-2.0
#include "agent/systemd/event_log.h"

#include <sys/uio.h>
#include <syslog.h>
#include <systemd/sd-journal.h>

#include <tuple>

namespace kdtree {
namespace {

std::string field(const std::string& name, const std::string& value) { return name + "=" + value; }

}  // namespace

std::string message_id(Event event) {
  switch (event) {
    case Event::change_good:
      return "9d80fe4791ab4c92a7912c06b8c89cce";
    case Event::change_rolled_back:
      return "0f04db7f1f604f1b8574ab2c526f5493";
    case Event::rollback_failed:
      return "6d5c5d846be24e47a808e3a7ee3e821f";
    case Event::change_recovered:
      return "ef1e10ead8384869b07b1a6e0981f318";
  }
  return {};
}

void log_event(Event event, const std::string& message,
               const std::vector<std::pair<std::string, std::string>>& fields) {
  const int priority = event == Event::rollback_failed ? LOG_ERR
                       : event == Event::change_good   ? LOG_NOTICE
                                                       : LOG_WARNING;
  std::vector<std::string> lines = {"MESSAGE=" + message, "MESSAGE_ID=" + message_id(event),
                                    "PRIORITY=" + std::to_string(priority),
                                    "SYSLOG_IDENTIFIER=kdtreectl"};
  for (const auto& [name, value] : fields) lines.push_back(field(name, value));
  std::vector<iovec> parts;
  parts.reserve(lines.size());
  for (auto& line : lines) parts.push_back({line.data(), line.size()});
  std::ignore = sd_journal_sendv(parts.data(), static_cast<int>(parts.size()));
}

}  // namespace kdtree
