// SPDX-License-Identifier: Apache-2.0
#include "agent/util/http_stream.h"

#include <curl/curl.h>

#include <algorithm>
#include <memory>
#include <mutex>

#include "agent/util/interrupt.h"

namespace kdtree {
namespace {

constexpr std::size_t kMaxErrorBody = 4096;
constexpr std::size_t kMaxLine = 16u << 20;

struct Reader {
  CURL* curl;
  const std::function<void(std::string_view)>& on_line;
  std::string rest;  // a line that has not ended yet
  std::string error_body;
};

std::size_t take(char* data, std::size_t, std::size_t size, void* user) {
  auto& reader = *static_cast<Reader*>(user);
  long status = 0;
  curl_easy_getinfo(reader.curl, CURLINFO_RESPONSE_CODE, &status);
  if (status != 200) {
    reader.error_body.append(data, std::min(size, kMaxErrorBody - reader.error_body.size()));
    return size;
  }
  if (reader.rest.size() + size > kMaxLine) return 0;
  reader.rest.append(data, size);
  std::size_t begin = 0;
  for (std::size_t end; (end = reader.rest.find('\n', begin)) != std::string::npos;
       begin = end + 1) {
    std::string_view line(reader.rest.data() + begin, end - begin);
    if (line.ends_with('\r')) line.remove_suffix(1);
    reader.on_line(line);
  }
  reader.rest.erase(0, begin);
  return size;
}

int stop_if_interrupted(void*, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  return interrupted() ? 1 : 0;
}

}  // namespace

Result<HttpAnswer> http_post_lines(const std::string& url, const std::string& json,
                                   std::chrono::milliseconds deadline,
                                   const std::function<void(std::string_view)>& on_line) {
  static std::once_flag once;
  std::call_once(once, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
  std::unique_ptr<CURL, decltype(&curl_easy_cleanup)> curl(curl_easy_init(), curl_easy_cleanup);
  std::unique_ptr<curl_slist, decltype(&curl_slist_free_all)> headers(
      curl_slist_append(nullptr, "Content-Type: application/json"), curl_slist_free_all);
  if (!curl || !headers) return fail(ExitCode::refused, "no memory for an HTTP request");

  Reader reader{curl.get(), on_line, {}, {}};
  char message[CURL_ERROR_SIZE] = "";
  curl_easy_setopt(curl.get(), CURLOPT_URL, url.c_str());
  curl_easy_setopt(curl.get(), CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl.get(), CURLOPT_FOLLOWLOCATION, 0L);
  curl_easy_setopt(curl.get(), CURLOPT_PROXY, "");
  curl_easy_setopt(curl.get(), CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl.get(), CURLOPT_TIMEOUT_MS, static_cast<long>(deadline.count()));
  curl_easy_setopt(curl.get(), CURLOPT_ERRORBUFFER, message);
  curl_easy_setopt(curl.get(), CURLOPT_HTTPHEADER, headers.get());
  curl_easy_setopt(curl.get(), CURLOPT_POSTFIELDS, json.c_str());
  curl_easy_setopt(curl.get(), CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(json.size()));
  curl_easy_setopt(curl.get(), CURLOPT_WRITEFUNCTION, take);
  curl_easy_setopt(curl.get(), CURLOPT_WRITEDATA, &reader);
  curl_easy_setopt(curl.get(), CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(curl.get(), CURLOPT_XFERINFOFUNCTION, stop_if_interrupted);
  const CURLcode code = curl_easy_perform(curl.get());
  if (code == CURLE_ABORTED_BY_CALLBACK) return fail(ExitCode::refused, "interrupted");
  if (code != CURLE_OK)
    return fail(ExitCode::refused,
                url + ": " + (*message != '\0' ? message : curl_easy_strerror(code)));
  long status = 0;
  curl_easy_getinfo(curl.get(), CURLINFO_RESPONSE_CODE, &status);
  if (status == 200 && !reader.rest.empty()) on_line(reader.rest);
  return HttpAnswer{static_cast<int>(status), std::move(reader.error_body)};
}

}  // namespace kdtree
