// SPDX-License-Identifier: Apache-2.0
#include "agent/metrics/web_config.h"

#include <algorithm>
#include <array>

#include "agent/config/json_object.h"
#include "agent/metrics/yaml_json.h"
#include "agent/util/file.h"

namespace kdtree {
namespace {

using nlohmann::json;

constexpr std::size_t kMostBytes = 1u << 20;
constexpr int kHighestCost = 14;  // a scrape that waits for more would time out
constexpr std::array<std::string_view, 6> kHeaders{
    "X-Frame-Options",           "X-Content-Type-Options",  "X-XSS-Protection",
    "Strict-Transport-Security", "Content-Security-Policy", "Cache-Control"};

class Loader {
 public:
  explicit Loader(std::filesystem::path path) : path_(std::move(path)) {}

  Result<WebConfig> load() {
    KDTREE_TRY_ASSIGN(const std::string text, read(path_));
    KDTREE_TRY_ASSIGN(const json document, yaml_to_json(text, path_.string()));
    if (!document.is_object())
      return fail(ExitCode::usage, path_.string() + " is not a mapping of keys");
    if (auto taken = take(document); !taken)
      return prefixed(path_.string(), std::move(taken).error());
    return std::move(config_);
  }

 private:
  Result<std::string> read(const std::filesystem::path& path) {
    config_.files.push_back(path);
    auto text = read_file(path, kMostBytes);
    if (!text) {
      text.error().code = ExitCode::usage;
      return tl::make_unexpected(std::move(text).error());
    }
    return text;
  }

  Status take(const json& document) {
    JsonObject object(document, "");
    if (const json* member = object.find("tls_server_config")) KDTREE_TRY(take_tls(*member));
    if (const json* member = object.find("http_server_config")) KDTREE_TRY(take_http(*member));
    if (const json* member = object.find("basic_auth_users")) KDTREE_TRY(take_users(*member));
    return object.finish();
  }

  Result<std::string> pem(JsonObject& object, std::string_view key) {
    std::string file;
    object.text(key, file);
    if (file.empty()) return file;
    return read(path_.parent_path() / file);
  }

  Status take_tls(const json& value) {
    JsonObject object(value, "tls_server_config");
    TlsSettings tls;
    KDTREE_TRY_ASSIGN(tls.certificate, pem(object, "cert_file"));
    KDTREE_TRY_ASSIGN(tls.key, pem(object, "key_file"));
    KDTREE_TRY_ASSIGN(tls.client_ca, pem(object, "client_ca_file"));
    if (tls.certificate.empty()) object.reject("cert_file", "is missing");
    if (tls.key.empty()) object.reject("key_file", "is missing");
    std::string client = "NoClientCert";
    object.text("client_auth_type", client);
    if (client != "NoClientCert" && client != "RequireAndVerifyClientCert")
      object.reject("client_auth_type", "is neither NoClientCert nor RequireAndVerifyClientCert",
                    "the ways in between let in who has no certificate of client_ca_file");
    if ((client == "NoClientCert") != tls.client_ca.empty())
      object.reject("client_ca_file", "goes with client_auth_type RequireAndVerifyClientCert");
    take_versions(object, tls);
    KDTREE_TRY(object.finish());
    config_.tls = std::move(tls);
    return {};
  }

  static void take_versions(JsonObject& object, TlsSettings& tls) {
    std::string least = "TLS12";
    std::string most = "TLS13";
    object.text("min_version", least);
    object.text("max_version", most);
    for (const auto& [key, version] : {std::pair{"min_version", least}, {"max_version", most}})
      if (version != "TLS12" && version != "TLS13")
        object.reject(key, "is neither TLS12 nor TLS13");
    if (least > most) object.reject("max_version", "is below min_version");
    tls.priorities = "NORMAL:-VERS-ALL";
    if (least == "TLS12") tls.priorities += ":+VERS-TLS1.2";
    if (most == "TLS13") tls.priorities += ":+VERS-TLS1.3";
  }

  Status take_http(const json& value) {
    JsonObject object(value, "http_server_config");
    bool http2 = false;
    object.boolean("http2", http2);
    if (const json* headers = object.find("headers")) {
      JsonObject known(*headers, "http_server_config.headers");
      for (const std::string_view name : kHeaders) {
        std::string text;
        known.text(name, text);
        if (text.find_first_of("\r\n") != std::string::npos) known.reject(name, "has a line end");
        if (!text.empty()) config_.headers[std::string(name)] = text;
      }
      KDTREE_TRY(known.finish());
    }
    return object.finish();
  }

  Status take_users(const json& value) {
    if (!value.is_object())
      return fail(ExitCode::usage, "basic_auth_users is not a mapping of names to bcrypt hashes");
    for (const auto& [name, hash] : value.items()) {
      if (name.empty() || name.find(':') != std::string::npos)
        return fail(ExitCode::usage, "basic_auth_users: a name is empty or has a ':'");
      if (!hash.is_string() || !is_bcrypt(hash.get<std::string>()))
        return fail(ExitCode::usage,
                    "basic_auth_users." + name + " is not a bcrypt hash of cost 4 to 14",
                    "make one with: htpasswd -nBC 10 \"\"");
      config_.users[name] = hash.get<std::string>();
    }
    return {};
  }

  // "$2y$10$" and 53 characters of salt and hash.
  static bool is_bcrypt(const std::string& hash) {
    if (hash.size() != 60 || hash[0] != '$' || hash[1] != '2' ||
        std::string_view("aby").find(hash[2]) == std::string_view::npos || hash[3] != '$' ||
        hash[6] != '$')
      return false;
    const std::string cost = hash.substr(4, 2);
    return cost >= "04" && cost <= std::to_string(kHighestCost) &&
           std::all_of(cost.begin(), cost.end(), [](char c) { return c >= '0' && c <= '9'; });
  }

  const std::filesystem::path path_;
  WebConfig config_;
};

}  // namespace

Result<WebConfig> load_web_config(const std::filesystem::path& path) {
  if (path.empty()) return WebConfig{};
  return Loader(path).load();
}

}  // namespace kdtree
