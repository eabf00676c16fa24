// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/util/result.h"

// The web configuration file of Prometheus' exporters (prometheus/exporter-toolkit,
// docs/web-configuration.md): TLS and basic authentication of the listener. What is not known here
// is refused, never passed over: it may be what was meant to protect.
//
//   tls_server_config: cert_file, key_file, client_auth_type (NoClientCert,
//     RequireAndVerifyClientCert), client_ca_file, min_version, max_version (TLS12, TLS13)
//   http_server_config: headers (the six that the toolkit allows), http2 (true means "if it can":
//   it
//     can't)
//   basic_auth_users: name: bcrypt hash
namespace kdtree {

struct TlsSettings {
  std::string certificate, key;  // PEM, a chain where it is one
  std::string client_ca;         // PEM; "" = no client certificate is asked for; else one is needed
  std::string priorities;        // of gnutls
};

struct WebConfig {
  std::optional<TlsSettings> tls;
  std::map<std::string, std::string> users;  // name -> bcrypt hash; empty = everybody is let in
  std::map<std::string, std::string> headers;
  std::vector<std::filesystem::path>
      files;  // all that were read: a change of one is a change of all

  // Only who has a password or a certificate gets in, and nobody listens in.
  bool is_closed() const { return tls && (!users.empty() || !tls->client_ca.empty()); }
};

// Paths in it are relative to its folder. `path` "" = no web configuration: plain HTTP, for
// everybody. Errors: usage, with file and key.
Result<WebConfig> load_web_config(const std::filesystem::path& path);

}  // namespace kdtree
