// SPDX-License-Identifier: Apache-2.0
#include "agent/util/http_get.h"

#include <algorithm>

#include "agent/util/curl_request.h"

namespace kdtree {
namespace {

struct Body {
  std::string& text;
  std::size_t max_bytes;
};

std::size_t keep_body(char* data, std::size_t, std::size_t size, void* user) {
  auto& body = *static_cast<Body*>(user);
  body.text.append(data,
                   std::min(size, body.max_bytes - std::min(body.max_bytes, body.text.size())));
  return size;
}

// `json`: null for a GET.
Result<HttpAnswer> request(const std::string& url, const std::string* json,
                           std::chrono::milliseconds deadline, std::size_t max_body_bytes,
                           const HttpVia& via) {
  CurlRequest curl(url, deadline);
  if (!curl.ok() || (json != nullptr && !curl.post_json(*json)))
    return fail(ExitCode::refused, "no memory for an HTTP request");

  HttpAnswer answer;
  Body body{answer.body, max_body_bytes};
  curl_easy_setopt(curl.get(), CURLOPT_WRITEFUNCTION, keep_body);
  curl_easy_setopt(curl.get(), CURLOPT_WRITEDATA, &body);
  const auto text = [&](CURLoption option, const std::string& value) {
    if (!value.empty()) curl_easy_setopt(curl.get(), option, value.c_str());
  };
  text(CURLOPT_UNIX_SOCKET_PATH, via.unix_socket);
  text(CURLOPT_CAINFO, via.ca_file);
  text(CURLOPT_USERNAME, via.user);
  text(CURLOPT_PASSWORD, via.password);
  if (const CURLcode code = curl.perform(); code != CURLE_OK)
    return tl::make_unexpected(curl.failure(code));
  answer.status = curl.status();
  return answer;
}

}  // namespace

Result<HttpAnswer> http_get(const std::string& url, std::chrono::milliseconds deadline,
                            std::size_t max_body_bytes, const HttpVia& via) {
  return request(url, nullptr, deadline, max_body_bytes, via);
}

Result<HttpAnswer> http_post(const std::string& url, const std::string& json,
                             std::chrono::milliseconds deadline, std::size_t max_body_bytes) {
  return request(url, &json, deadline, max_body_bytes, {});
}

}  // namespace kdtree
