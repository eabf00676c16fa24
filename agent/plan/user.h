// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace kdtree {

// Who asked for a change: SUDO_USER if that is a plain name, else the name of our uid, else its
// number.
std::string asking_user();

}  // namespace kdtree
