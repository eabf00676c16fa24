// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

#include "agent/util/result.h"

namespace kdtree {

struct HttpAnswer {
  int status = 0;    // 200, 503, ...
  std::string body;  // at most max_body_bytes of it
};

// How to reach it, where the URL doesn't say all.
struct HttpVia {
  std::string unix_socket;     // path; "" = TCP
  std::string ca_file;         // "" = the system's authorities
  std::string user, password;  // basic authentication; "" = none
};

// GET of an http or https URL: no redirects, no proxy, no cookies. Any answer is a value, whatever
// its status. Errors: refused where none came (not listening, deadline, broken answer).
Result<HttpAnswer> http_get(const std::string& url, std::chrono::milliseconds deadline,
                            std::size_t max_body_bytes = 64u << 10, const HttpVia& via = {});

// The same, as a POST of `json`.
Result<HttpAnswer> http_post(const std::string& url, const std::string& json,
                             std::chrono::milliseconds deadline,
                             std::size_t max_body_bytes = 64u << 10);

}  // namespace kdtree
