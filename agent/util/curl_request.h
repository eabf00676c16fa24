// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <curl/curl.h>

#include <array>
#include <chrono>
#include <memory>
#include <string>

#include "agent/util/result.h"

namespace kdtree {

// One request as all of ours are made: http or https, no redirection followed, no proxy, no signal,
// one deadline for the whole. Used only inside agent/util.
class CurlRequest {
 public:
  CurlRequest(std::string url, std::chrono::milliseconds deadline);
  CurlRequest(const CurlRequest&) = delete;  // curl holds pointers into it
  CurlRequest& operator=(const CurlRequest&) = delete;

  bool ok() const { return curl_ != nullptr; }  // false: no memory
  CURL* get() const { return curl_.get(); }
  // `json` has to outlive the request. False: no memory.
  bool post_json(const std::string& json);
  CURLcode perform() { return curl_easy_perform(get()); }
  int status() const;  // HTTP's, 0 = none
  // "URL: what went wrong".
  Error failure(CURLcode code) const;

 private:
  struct Cleanup {
    void operator()(CURL* curl) const { curl_easy_cleanup(curl); }
    void operator()(curl_slist* list) const { curl_slist_free_all(list); }
  };

  std::string url_;
  std::array<char, CURL_ERROR_SIZE> message_{};
  std::unique_ptr<curl_slist, Cleanup> headers_;
  std::unique_ptr<CURL, Cleanup> curl_;
};

}  // namespace kdtree
