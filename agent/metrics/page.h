// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string_view>

namespace kdtree {

// The landing page and its parts (agent/metrics/page/), compiled in.
struct PageFile {
  std::string_view path;  // "/page.css"
  std::string_view type;  // Content-Type
  std::string_view text;
};
std::span<const PageFile> page_files();

}  // namespace kdtree
