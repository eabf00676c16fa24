// SPDX-License-Identifier: Apache-2.0
#include "agent/util/http_stream.h"

#include <algorithm>

#include "agent/util/curl_request.h"
#include "agent/util/interrupt.h"

namespace kdtree {
namespace {

constexpr std::size_t kMaxErrorBody = 4096;
constexpr std::size_t kMaxLine = 16u << 20;

struct Reader {
  const CurlRequest& curl;
  const std::function<void(std::string_view)>& on_line;
  std::string rest;  // a line that has not ended yet
  std::string error_body;
};

std::size_t take(char* data, std::size_t, std::size_t size, void* user) {
  auto& reader = *static_cast<Reader*>(user);
  if (reader.curl.status() != 200) {
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
  CurlRequest curl(url, deadline);
  if (!curl.ok() || !curl.post_json(json))
    return fail(ExitCode::refused, "no memory for an HTTP request");

  Reader reader{curl, on_line, {}, {}};
  curl_easy_setopt(curl.get(), CURLOPT_WRITEFUNCTION, take);
  curl_easy_setopt(curl.get(), CURLOPT_WRITEDATA, &reader);
  curl_easy_setopt(curl.get(), CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(curl.get(), CURLOPT_XFERINFOFUNCTION, stop_if_interrupted);
  const CURLcode code = curl.perform();
  if (code == CURLE_ABORTED_BY_CALLBACK) return fail(ExitCode::refused, "interrupted");
  if (code != CURLE_OK) return tl::make_unexpected(curl.failure(code));
  const int status = curl.status();
  if (status == 200 && !reader.rest.empty()) on_line(reader.rest);
  return HttpAnswer{status, std::move(reader.error_body)};
}

}  // namespace kdtree
