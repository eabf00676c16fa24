// SPDX-License-Identifier: Apache-2.0
#include "dbus_member.h"

#include <cstdint>
#include <cstring>

namespace torture {
namespace {

constexpr std::size_t kFixedHeader = 16;  // with the length of the field array in its last 4 bytes
constexpr char kMethodCall = 1, kMember = 3;

std::size_t aligned(std::size_t at, std::size_t to) { return (at + to - 1) / to * to; }

}  // namespace

std::string dbus_member(std::string_view bytes) {
  if (bytes.size() < kFixedHeader || bytes[0] != 'l' || bytes[1] != kMethodCall) return {};
  std::size_t at = kFixedHeader;
  while ((at = aligned(at, 8)) + 4 < bytes.size()) {
    const char code = bytes[at], type = bytes[at + 2];
    at += 4;  // code, and a signature of one character
    if (type == 'g') {
      at += static_cast<unsigned char>(bytes[at]) + 2u;
      continue;
    }
    at = aligned(at, 4);
    std::uint32_t length = 0;
    if (at + 4 > bytes.size()) return {};
    std::memcpy(&length, bytes.data() + at, 4);
    at += 4;
    if (type == 'u') continue;
    if ((type != 's' && type != 'o') || length > bytes.size() - at) return {};
    if (code == kMember) return std::string(bytes.substr(at, length));
    at += length + 1;
  }
  return {};
}

bool only_asks(std::string_view member) {
  return member.starts_with("Get") || member.starts_with("List") || member == "Hello" ||
         member == "Ping" || member == "AddMatch" || member == "RemoveMatch" ||
         member == "Subscribe" || member == "LoadUnit" || member == "Introspect";
}

}  // namespace torture
