// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <functional>
#include <map>
#include <string_view>

#include "agent/systemd/bus.h"

namespace kdtree::bus {
namespace {

using Reader = std::function<int(sd_bus_message*, UnitState&)>;

int read_text(sd_bus_message* m, std::string& out) {
  const char* value = nullptr;
  int r = sd_bus_message_read_basic(m, 's', &value);
  if (r >= 0) out = value;
  return r;
}

int read_bool(sd_bus_message* m, bool& out) {
  int value = 0;
  int r = sd_bus_message_read_basic(m, 'b', &value);
  if (r >= 0) out = value != 0;
  return r;
}

int read_texts(sd_bus_message* m, std::vector<std::string>& out) {
  out.clear();
  int r = sd_bus_message_enter_container(m, 'a', "s");
  if (r < 0) return r;
  const char* value = nullptr;
  while ((r = sd_bus_message_read_basic(m, 's', &value)) > 0) out.emplace_back(value);
  return r < 0 ? r : sd_bus_message_exit_container(m);
}

int read_invocation_id(sd_bus_message* m, std::string& out) {
  const void* bytes = nullptr;
  size_t size = 0;
  int r = sd_bus_message_read_array(m, 'y', &bytes, &size);
  if (r < 0) return r;
  static constexpr char kDigits[] = "0123456789abcdef";
  out.clear();
  bool zero = true;
  for (size_t i = 0; i < size; ++i) {
    auto byte = static_cast<const unsigned char*>(bytes)[i];
    zero = zero && byte == 0;
    out += kDigits[byte >> 4];
    out += kDigits[byte & 15];
  }
  if (zero) out.clear();
  return r;
}

int read_environment(sd_bus_message* m, UnitState& state) {
  std::vector<std::string> lines;
  int r = read_texts(m, lines);
  if (r < 0) return r;
  state.environment.clear();
  for (const auto& line : lines) {
    auto equals = line.find('=');
    if (equals != std::string::npos)
      state.environment.emplace_back(line.substr(0, equals), line.substr(equals + 1));
  }
  return 0;
}

int read_environment_files(sd_bus_message* m, UnitState& state) {
  state.environment_files.clear();
  int r = sd_bus_message_enter_container(m, 'a', "(sb)");
  if (r < 0) return r;
  const char* path = nullptr;
  int optional = 0;
  while ((r = sd_bus_message_read(m, "(sb)", &path, &optional)) > 0)
    state.environment_files.push_back({path, optional != 0});
  return r < 0 ? r : sd_bus_message_exit_container(m);
}

int read_exec_start(sd_bus_message* m, UnitState& state) {
  state.exec_start.clear();
  int r = sd_bus_message_enter_container(m, 'a', "(sasasttttuii)");
  if (r < 0) return r;
  while ((r = sd_bus_message_enter_container(m, 'r', "sasasttttuii")) > 0) {
    ExecCommand command;
    if ((r = read_text(m, command.path)) < 0) return r;
    if ((r = read_texts(m, command.argv)) < 0) return r;
    if ((r = read_texts(m, command.flags)) < 0) return r;
    if ((r = sd_bus_message_skip(m, "ttttuii")) < 0) return r;
    if ((r = sd_bus_message_exit_container(m)) < 0) return r;
    state.exec_start.push_back(std::move(command));
  }
  return r < 0 ? r : sd_bus_message_exit_container(m);
}

template <typename Get>
Reader text(Get get) {
  return [get](sd_bus_message* m, UnitState& s) { return read_text(m, get(s)); };
}
template <typename Get>
Reader flag(Get get) {
  return [get](sd_bus_message* m, UnitState& s) { return read_bool(m, get(s)); };
}
template <typename Get>
Reader texts(Get get) {
  return [get](sd_bus_message* m, UnitState& s) { return read_texts(m, get(s)); };
}
template <char kType, typename Raw, typename Get>
Reader number(Get get) {
  return [get](sd_bus_message* m, UnitState& s) {
    Raw value = 0;
    int r = sd_bus_message_read_basic(m, kType, &value);
    if (r >= 0) get(s) = static_cast<std::remove_reference_t<decltype(get(s))>>(value);
    return r;
  };
}

#define KDTREE_FIELD(field) ([](UnitState & s) -> auto& { return s.field; })

struct Property {
  const char* signature;
  Reader read;
};

const std::map<std::string_view, Property>& properties() {
  static const std::map<std::string_view, Property> table = {
      {"Id", {"s", text(KDTREE_FIELD(name))}},
      {"LoadState", {"s", text(KDTREE_FIELD(load_state))}},
      {"LoadError",
       {"(ss)",
        [](sd_bus_message* m, UnitState& s) {
          const char *name = nullptr, *message = nullptr;
          int r = sd_bus_message_read(m, "(ss)", &name, &message);
          if (r >= 0) s.load_error = message;
          return r;
        }}},
      {"ActiveState", {"s", text(KDTREE_FIELD(active_state))}},
      {"SubState", {"s", text(KDTREE_FIELD(sub_state))}},
      {"UnitFileState", {"s", text(KDTREE_FIELD(unit_file_state))}},
      {"FragmentPath", {"s", text(KDTREE_FIELD(fragment_path))}},
      {"DropInPaths", {"as", texts(KDTREE_FIELD(drop_in_paths))}},
      {"NeedDaemonReload", {"b", flag(KDTREE_FIELD(need_daemon_reload))}},
      {"InvocationID",
       {"ay",
        [](sd_bus_message* m, UnitState& s) { return read_invocation_id(m, s.invocation_id); }}},
      {"Result", {"s", text(KDTREE_FIELD(result))}},
      {"Type", {"s", text(KDTREE_FIELD(type))}},
      {"MainPID", {"u", number<'u', std::uint32_t>(KDTREE_FIELD(main_pid))}},
      {"ExecMainCode", {"i", number<'i', std::int32_t>(KDTREE_FIELD(exec_main_code))}},
      {"ExecMainStatus", {"i", number<'i', std::int32_t>(KDTREE_FIELD(exec_main_status))}},
      {"NRestarts", {"u", number<'u', std::uint32_t>(KDTREE_FIELD(restarts))}},
      {"Restart", {"s", text(KDTREE_FIELD(restart))}},
      {"ControlGroup", {"s", text(KDTREE_FIELD(control_group))}},
      {"Slice", {"s", text(KDTREE_FIELD(slice))}},
      {"User", {"s", text(KDTREE_FIELD(user))}},
      {"Group", {"s", text(KDTREE_FIELD(group))}},
      {"WorkingDirectory", {"s", text(KDTREE_FIELD(working_directory))}},
      {"RuntimeDirectory", {"as", texts(KDTREE_FIELD(runtime_directories))}},
      {"Environment", {"as", read_environment}},
      {"EnvironmentFiles", {"a(sb)", read_environment_files}},
      {"ExecStartEx", {"a(sasasttttuii)", read_exec_start}},
      {"TimeoutStartUSec", {"t", number<'t', std::uint64_t>(KDTREE_FIELD(timeout_start_us))}},
      {"TimeoutStopUSec", {"t", number<'t', std::uint64_t>(KDTREE_FIELD(timeout_stop_us))}},
      {"ProtectSystem", {"s", text(KDTREE_FIELD(sandbox.protect_system))}},
      {"ProtectHome", {"s", text(KDTREE_FIELD(sandbox.protect_home))}},
      {"PrivateTmp", {"b", flag(KDTREE_FIELD(sandbox.private_tmp))}},
      {"PrivateDevices", {"b", flag(KDTREE_FIELD(sandbox.private_devices))}},
      {"PrivateNetwork", {"b", flag(KDTREE_FIELD(sandbox.private_network))}},
      {"NoNewPrivileges", {"b", flag(KDTREE_FIELD(sandbox.no_new_privileges))}},
      {"MemoryDenyWriteExecute", {"b", flag(KDTREE_FIELD(sandbox.memory_deny_write_execute))}},
      {"DynamicUser", {"b", flag(KDTREE_FIELD(sandbox.dynamic_user))}},
      {"RootDirectory", {"s", text(KDTREE_FIELD(sandbox.root_directory))}},
      {"RootImage", {"s", text(KDTREE_FIELD(sandbox.root_image))}},
      {"ReadWritePaths", {"as", texts(KDTREE_FIELD(sandbox.read_write_paths))}},
      {"ReadOnlyPaths", {"as", texts(KDTREE_FIELD(sandbox.read_only_paths))}},
      {"InaccessiblePaths", {"as", texts(KDTREE_FIELD(sandbox.inaccessible_paths))}},
      {"DevicePolicy", {"s", text(KDTREE_FIELD(sandbox.device_policy))}},
  };
  return table;
}

#undef KDTREE_FIELD

}  // namespace

int read_properties(sd_bus_message* reply, UnitState& state) {
  int r = sd_bus_message_enter_container(reply, 'a', "{sv}");
  if (r < 0) return r;
  while ((r = sd_bus_message_enter_container(reply, 'e', "sv")) > 0) {
    const char* name = nullptr;
    if ((r = sd_bus_message_read_basic(reply, 's', &name)) < 0) return r;
    char type = 0;
    const char* contents = nullptr;
    if ((r = sd_bus_message_peek_type(reply, &type, &contents)) < 0) return r;
    auto known = properties().find(name);
    if (known != properties().end() && std::strcmp(known->second.signature, contents) == 0) {
      if ((r = sd_bus_message_enter_container(reply, 'v', contents)) < 0) return r;
      if ((r = known->second.read(reply, state)) < 0) return r;
      if ((r = sd_bus_message_exit_container(reply)) < 0) return r;
    } else if ((r = sd_bus_message_skip(reply, "v")) < 0) {
      return r;
    }
    if ((r = sd_bus_message_exit_container(reply)) < 0) return r;
  }
  return r < 0 ? r : sd_bus_message_exit_container(reply);
}

}  // namespace kdtree::bus
