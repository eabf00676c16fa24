// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

#include "agent/util/root.h"

namespace kdtree {

// "2026-11-29T17:30:46Z", from the wall clock: for people and records, never for deadlines.
std::string utc_now();

// CLOCK_BOOTTIME, nanoseconds since boot, sleep included.
std::uint64_t boottime_ns();

// /proc/sys/kernel/random/boot_id; "" where it can't be read.
std::string boot_id(const Root& root = Root{});

// /proc/<pid>/stat field 22, clock ticks since boot: with the pid and the boot id it names a
// process for ever. nullopt: no such process, or one that has ended and that its parent didn't
// wait for yet.
std::optional<std::uint64_t> process_start_ticks(pid_t pid, const Root& root = Root{});

}  // namespace kdtree
