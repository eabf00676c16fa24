// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

// What a message on the bus asks for (D-Bus specification, "Message Format").
namespace torture {

// The member that a method call names; "" where `bytes` don't begin with one.
std::string dbus_member(std::string_view bytes);

// Methods that change nothing beyond the connection. All others count as changes.
bool only_asks(std::string_view member);

}  // namespace torture
