// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>

#include "agent/util/http_get.h"
#include "agent/util/result.h"

namespace kdtree {

// POST of a JSON text to an http or https URL whose answer is read line by line as it comes
// (server-sent events). Each line of an answer with status 200 goes to `on_line`, without its end,
// in the caller's thread; of any other answer the body is kept. No redirects, no proxy. Errors:
// refused where no answer came, it broke off, the deadline passed or the user interrupted
// (interrupt.h).
Result<HttpAnswer> http_post_lines(const std::string& url, const std::string& json,
                                   std::chrono::milliseconds deadline,
                                   const std::function<void(std::string_view)>& on_line);

}  // namespace kdtree
