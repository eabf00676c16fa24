// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

// Events in systemd's journal, each with the MESSAGE_ID that units/kdtree.catalog explains
// (journalctl -x). A test compares the two.
namespace kdtree {

enum class Event { change_good, change_rolled_back, rollback_failed, change_recovered };

// 32 hex digits.
std::string message_id(Event event);

// `fields`: more of them, names in capitals. Best effort: without a journal nothing happens.
void log_event(Event event, const std::string& message,
               const std::vector<std::pair<std::string, std::string>>& fields);

}  // namespace kdtree
