// SPDX-License-Identifier: Apache-2.0
#include "agent/util/http_get.h"

#include <curl/curl.h>

#include <algorithm>
#include <memory>
#include <mutex>

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

struct HeadersFree {
  void operator()(curl_slist* headers) const { curl_slist_free_all(headers); }
};

// `json`: null for a GET.
Result<HttpAnswer> request(const std::string& url, const std::string* json,
                           std::chrono::milliseconds deadline, std::size_t max_body_bytes,
                           const HttpVia& via) {
  static std::once_flag once;
  std::call_once(once, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
  std::unique_ptr<CURL, decltype(&curl_easy_cleanup)> curl(curl_easy_init(), curl_easy_cleanup);
  if (!curl) return fail(ExitCode::refused, "no memory for an HTTP request");

  HttpAnswer answer;
  Body body{answer.body, max_body_bytes};
  char message[CURL_ERROR_SIZE] = "";
  curl_easy_setopt(curl.get(), CURLOPT_URL, url.c_str());
  curl_easy_setopt(curl.get(), CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl.get(), CURLOPT_FOLLOWLOCATION, 0L);
  curl_easy_setopt(curl.get(), CURLOPT_PROXY, "");
  curl_easy_setopt(curl.get(), CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl.get(), CURLOPT_TIMEOUT_MS, static_cast<long>(deadline.count()));
  curl_easy_setopt(curl.get(), CURLOPT_ERRORBUFFER, message);
  curl_easy_setopt(curl.get(), CURLOPT_WRITEFUNCTION, keep_body);
  curl_easy_setopt(curl.get(), CURLOPT_WRITEDATA, &body);
  const auto text = [&](CURLoption option, const std::string& value) {
    if (!value.empty()) curl_easy_setopt(curl.get(), option, value.c_str());
  };
  text(CURLOPT_UNIX_SOCKET_PATH, via.unix_socket);
  text(CURLOPT_CAINFO, via.ca_file);
  text(CURLOPT_USERNAME, via.user);
  text(CURLOPT_PASSWORD, via.password);
  std::unique_ptr<curl_slist, HeadersFree> headers;
  if (json != nullptr) {
    headers.reset(curl_slist_append(nullptr, "Content-Type: application/json"));
    curl_easy_setopt(curl.get(), CURLOPT_HTTPHEADER, headers.get());
    curl_easy_setopt(curl.get(), CURLOPT_POSTFIELDS, json->c_str());
    curl_easy_setopt(curl.get(), CURLOPT_POSTFIELDSIZE, static_cast<long>(json->size()));
  }
  const CURLcode code = curl_easy_perform(curl.get());
  if (code != CURLE_OK)
    return fail(ExitCode::refused,
                url + ": " + (*message != '\0' ? message : curl_easy_strerror(code)));
  long status = 0;
  curl_easy_getinfo(curl.get(), CURLINFO_RESPONSE_CODE, &status);
  answer.status = static_cast<int>(status);
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
