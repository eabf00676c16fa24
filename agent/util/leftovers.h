// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "agent/util/root.h"

namespace kdtree {

// Removes what a killed kdtreectl left half made: temp files beside what atomic_file.h writes, and
// folders that a release was being built in. The caller holds the lock, so all of them are stale.
// What can't be removed stays for the next time: it is in nobody's way.
void remove_leftovers(const Root& root);

}  // namespace kdtree
