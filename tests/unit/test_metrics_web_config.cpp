// SPDX-License-Identifier: Apache-2.0
#include <crypt.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "agent/metrics/basic_auth.h"
#include "agent/metrics/web_config.h"
#include "agent/metrics/yaml_json.h"

namespace kdtree {
namespace {

// Of "secret", cost 4: crypt(3) made it.
std::string hash_of(const char* password) {
  return ::crypt(password, "$2b$04$abcdefghijklmnopqrstuu");
}

class WebConfigTest : public testing::Test {
 protected:
  WebConfigTest() {
    char name[] = "/tmp/kdtree-web-XXXXXX";
    folder_ = ::mkdtemp(name);
    write("cert.pem", "CERT");
    write("key.pem", "KEY");
    write("ca.pem", "CA");
  }
  ~WebConfigTest() override { std::filesystem::remove_all(folder_); }
  void write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name) << text;
  }
  Result<WebConfig> load(const std::string& text) {
    write("web.yml", text);
    return load_web_config(folder_ / "web.yml");
  }
  std::filesystem::path folder_;
};

TEST_F(WebConfigTest, TheToolkitsOwnFormat) {
  const auto web = load(R"(
tls_server_config:
  cert_file: cert.pem   # relative to this file
  key_file: "key.pem"
  client_auth_type: RequireAndVerifyClientCert
  client_ca_file: ca.pem
  min_version: TLS13
http_server_config:
  http2: true
  headers:
    Strict-Transport-Security: max-age=1
basic_auth_users:
  alice: )" + hash_of("secret") +
                        "\n");
  ASSERT_TRUE(web) << web.error().what;
  ASSERT_TRUE(web->tls);
  EXPECT_EQ(web->tls->certificate, "CERT");
  EXPECT_EQ(web->tls->key, "KEY");
  EXPECT_EQ(web->tls->client_ca, "CA");
  EXPECT_EQ(web->tls->priorities, "NORMAL:-VERS-ALL:+VERS-TLS1.3");
  EXPECT_EQ(web->headers.at("Strict-Transport-Security"), "max-age=1");
  EXPECT_EQ(web->users.at("alice"), hash_of("secret"));
  EXPECT_EQ(web->files.size(), 4u);
  EXPECT_TRUE(web->is_closed());
}

TEST_F(WebConfigTest, NoneAndAnEmptyOneAreOpen) {
  EXPECT_FALSE(load_web_config("")->is_closed());
  ASSERT_TRUE(load(""));
  EXPECT_FALSE(load("# nothing\n")->is_closed());
}

TEST_F(WebConfigTest, PasswordsWithoutTlsAreNotClosed) {
  const auto web = load("basic_auth_users: {alice: '" + hash_of("secret") + "'}");
  ASSERT_TRUE(web);
  EXPECT_FALSE(web->is_closed());
}

TEST_F(WebConfigTest, WhatIsNotKnownOrHalfIsRefusedWithItsPlace) {
  const std::pair<std::string, const char*> cases[]{
      {"tls_server_config: {cert_file: cert.pem}", "key_file"},
      {"tls_server_config: {cert_file: none.pem, key_file: key.pem}", "none.pem"},
      {"tls_server_config: {cert_file: cert.pem, key_file: key.pem, cipher_suites: [x]}",
       "cipher_suites"},
      {"tls_server_config: {cert_file: cert.pem, key_file: key.pem, client_auth_type: "
       "RequestClientCert}",
       "client_auth_type"},
      {"tls_server_config: {cert_file: cert.pem, key_file: key.pem, client_ca_file: ca.pem}",
       "client_ca_file"},
      {"tls_server_config: {cert_file: cert.pem, key_file: key.pem, min_version: TLS10}",
       "min_version"},
      {"tls_server_config: {cert_file: cert.pem, key_file: key.pem, min_version: TLS13, "
       "max_version: TLS12}",
       "max_version"},
      {"basic_auth_users: {alice: secret}", "alice"},
      {"basic_auth_users: {alice: $2y$31$abcdefghijklmnopqrstuuabcdefghijklmnopqrstuuabcdefghi}",
       "alice"},
      {"basic_auth_user: {}", "basic_auth_user"},
      {"rate_limit: {burst: 3}", "rate_limit"},
      {"http_server_config: {headers: {X-Else: 1}}", "X-Else"},
      {"a: [", "line"},
      {"a: 1\na: 2", "line 2"},
      {"--- {}\n--- {}", "document"},
      {"a: &x 1\nb: *x", "alias"},
      {"- 1", "mapping"},
  };
  for (const auto& [text, place] : cases) {
    const auto web = load(text);
    ASSERT_FALSE(web) << text;
    EXPECT_EQ(web.error().code, ExitCode::usage) << text;
    EXPECT_NE(web.error().what.find(place), std::string::npos) << text << ": " << web.error().what;
    EXPECT_EQ(web.error().what.find('\n'), std::string::npos);
  }
}

TEST(YamlToJson, ScalarsAreWhatTheyLookLikeUnlessQuoted) {
  const auto read = yaml_to_json("a: true\nb: 'true'\nc: 12\nd: 1.5x\ne:\nf: [1, {g: h}]", "x");
  ASSERT_TRUE(read) << read.error().what;
  EXPECT_EQ(*read, nlohmann::json::parse(
                       R"({"a":true,"b":"true","c":12,"d":"1.5x","e":null,"f":[1,{"g":"h"}]})"));
  std::string deep;
  for (int i = 0; i < 100; ++i) deep += "[";
  EXPECT_FALSE(yaml_to_json(deep, "x"));
}

TEST(BasicAuth, RightWrongAndUnknown) {
  BasicAuth auth({{"alice", hash_of("secret")}, {"bob", hash_of("other")}});
  for (int again = 0; again < 2; ++again) {  // the second time from memory
    EXPECT_TRUE(auth.allows("alice", "secret"));
    EXPECT_FALSE(auth.allows("alice", "other"));
    EXPECT_FALSE(auth.allows("bob", "secret"));
    EXPECT_FALSE(auth.allows("carol", "secret"));
    EXPECT_FALSE(auth.allows("", ""));
    EXPECT_FALSE(auth.allows("alice", std::string("secret\0x", 8)));
  }
}

TEST(BasicAuth, NameAndPasswordDontRunIntoEachOther) {
  BasicAuth auth({{"alice", hash_of("secret")}});
  EXPECT_TRUE(auth.allows("alice", "secret"));
  EXPECT_FALSE(auth.allows("alic", "esecret"));
  EXPECT_FALSE(auth.allows("alices", "ecret"));
}

TEST(BasicAuth, RemembersOnlySoMany) {
  BasicAuth auth({{"alice", hash_of("secret")}});
  for (int i = 0; i < 300; ++i) EXPECT_FALSE(auth.allows("alice", std::to_string(i)));
  EXPECT_TRUE(auth.allows("alice", "secret"));
}

}  // namespace
}  // namespace kdtree
