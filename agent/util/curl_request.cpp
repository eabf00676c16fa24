// SPDX-License-Identifier: Apache-2.0
#include "agent/util/curl_request.h"

#include <mutex>
#include <utility>

namespace kdtree {

CurlRequest::CurlRequest(std::string url, std::chrono::milliseconds deadline)
    : url_(std::move(url)) {
  static std::once_flag once;
  std::call_once(once, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
  curl_.reset(curl_easy_init());
  if (!curl_) return;
  curl_easy_setopt(get(), CURLOPT_URL, url_.c_str());
  curl_easy_setopt(get(), CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(get(), CURLOPT_FOLLOWLOCATION, 0L);
  curl_easy_setopt(get(), CURLOPT_PROXY, "");
  curl_easy_setopt(get(), CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(get(), CURLOPT_TIMEOUT_MS, static_cast<long>(deadline.count()));
  curl_easy_setopt(get(), CURLOPT_ERRORBUFFER, message_.data());
}

bool CurlRequest::post_json(const std::string& json) {
  headers_.reset(curl_slist_append(nullptr, "Content-Type: application/json"));
  if (!headers_) return false;
  curl_easy_setopt(get(), CURLOPT_HTTPHEADER, headers_.get());
  curl_easy_setopt(get(), CURLOPT_POSTFIELDS, json.c_str());
  curl_easy_setopt(get(), CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(json.size()));
  return true;
}

int CurlRequest::status() const {
  long status = 0;
  curl_easy_getinfo(get(), CURLINFO_RESPONSE_CODE, &status);
  return static_cast<int>(status);
}

Error CurlRequest::failure(CURLcode code) const {
  const std::string why = message_[0] != '\0' ? message_.data() : curl_easy_strerror(code);
  return fail(ExitCode::refused, url_ + ": " + why).value();
}

}  // namespace kdtree
