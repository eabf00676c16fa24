// SPDX-License-Identifier: Apache-2.0
#include "agent/config/config.h"

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <set>

#include "agent/config/json_object.h"
#include "agent/util/file.h"

namespace kdtree {
namespace {

using nlohmann::json;

constexpr std::string_view kUnitCharacters =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789:_.\\-@";

bool is_service_name(const std::string& name) {
  return name.ends_with(".service") && name.size() > 8 && name.size() <= 255 && name[0] != '.' &&
         name.find_first_not_of(kUnitCharacters) == std::string::npos;
}

bool is_name(const std::string& name) {
  const auto plain = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; };
  return !name.empty() && std::isdigit(static_cast<unsigned char>(name[0])) == 0 &&
         std::all_of(name.begin(), name.end(), plain);
}

bool is_digits(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
}

void read_environment(JsonObject& object, EngineConfig& engine) {
  const json* member = object.find("environment");
  if (member == nullptr) return;
  if (!member->is_object()) return object.reject("environment", "is not an object");
  for (const auto& [name, value] : member->items()) {
    if (!is_name(name)) return object.reject("environment." + name, "is not a variable's name");
    if (name.starts_with("KDTREE_"))
      return object.reject("environment." + name, "is set by kdtree itself", "remove it");
    if (!value.is_string() || value.get<std::string>().find('\n') != std::string::npos)
      return object.reject("environment." + name, "is not a string of one line");
    engine.environment[name] = value.get<std::string>();
  }
}

Status read_engine(const json& value, EngineConfig& engine) {
  JsonObject object(value, "engine");
  for (const char* key : {"unit", "python", "health_url", "ranks"}) object.need(key);
  object.text("unit", engine.unit);
  object.text("python", engine.python);
  object.text("health_url", engine.health_url);
  long long ranks = 0;
  object.integer("ranks", ranks, 1, 64);
  engine.ranks = static_cast<int>(ranks);
  object.texts("command", engine.command);
  object.text("user", engine.user);
  read_environment(object, engine);
  if (!is_service_name(engine.unit))
    object.reject("unit", "is not the name of a service", "such as sglang.service");
  if (!engine.python.starts_with('/'))
    object.reject("python", "is not an absolute path", "name the engine's python3");
  if (!engine.health_url.starts_with("http://") && !engine.health_url.starts_with("https://"))
    object.reject("health_url", "is not an http or https address",
                  "such as http://127.0.0.1:30000/health");
  if (!engine.whole_unit() && !engine.user.empty())
    object.reject("user", "is given without engine.command",
                  "an existing unit keeps its own user; remove it");
  if (!engine.whole_unit() && !engine.environment.empty())
    object.reject("environment", "is given without engine.command",
                  "set it in the unit itself; remove it here");
  if (engine.whole_unit() && !engine.command[0].starts_with('/'))
    object.reject("command", "does not begin with an absolute path");
  return object.finish();
}

Status read_kernel(const json& value, KernelConfig& kernel) {
  JsonObject object(value, "kernel");
  std::string device(to_string(kernel.device));
  object.text("device", device);
  if (device != "cuda" && device != "cpu") object.reject("device", "is neither cuda nor cpu");
  kernel.device = device == "cpu" ? KernelDevice::cpu : KernelDevice::cuda;
  object.texts("archs", kernel.archs);
  if (!std::all_of(kernel.archs.begin(), kernel.archs.end(), is_digits))
    object.reject("archs", "is not a list of architectures", "such as [\"120\"]");
  object.text("cuda_home", kernel.cuda_home);
  if (!kernel.cuda_home.empty() && !kernel.cuda_home.starts_with('/'))
    object.reject("cuda_home", "is not an absolute path");
  object.text("nsplit", kernel.nsplit);
  if (!kernel.nsplit.empty() && (!is_digits(kernel.nsplit) || kernel.nsplit.size() > 4 ||
                                 std::stoi(kernel.nsplit) > 1024 || kernel.nsplit[0] == '0'))
    object.reject("nsplit", "is not a number from 1 to 1024", "leave it empty to have it chosen");
  object.boolean("defrag_sort", kernel.defrag_sort);
  return object.finish();
}

Status check_flags(JsonObject& object, const char* key, const std::vector<std::string>& flags) {
  if (!flags.empty() && !flags[0].starts_with("--"))
    object.reject(key, "does not begin with a flag", "such as \"--name\"");
  for (const auto& flag : flags)
    if (flag.substr(0, flag.find('=')) == "--mem-fraction-static")
      object.reject(key, "holds --mem-fraction-static", "use mem_fraction_static");
  return {};
}

Status read_mode(const json& value, const std::string& path, ModeConfig& mode) {
  JsonObject object(value, path);
  double fraction = 0;
  if (value.is_object() && value.contains("mem_fraction_static")) {
    object.number("mem_fraction_static", fraction);
    if (!(fraction > 0 && fraction < 1))
      object.reject("mem_fraction_static", "is not between 0 and 1");
    mode.mem_fraction_static = fraction;
  } else {
    object.find("mem_fraction_static");
  }
  object.texts("add_flags", mode.add_flags);
  object.texts("remove_flags", mode.remove_flags);
  KDTREE_TRY(check_flags(object, "add_flags", mode.add_flags));
  KDTREE_TRY(check_flags(object, "remove_flags", mode.remove_flags));
  for (const auto& flag : mode.remove_flags)
    if (!flag.starts_with("--") || flag.find('=') != std::string::npos)
      object.reject("remove_flags", "holds '" + flag + "', which is not a flag's name",
                    "list names only; their values go with them");
  return object.finish();
}

Status read_modes(const json& value, std::map<Mode, ModeConfig>& modes) {
  JsonObject object(value, "modes");
  for (Mode mode : kAllModes) {
    const std::string name(to_string(mode));
    const json* member = object.find(name);
    if (member != nullptr) KDTREE_TRY(read_mode(*member, "modes." + name, modes[mode]));
  }
  return object.finish();
}

Status read_deadlines(const json& value, DeadlineConfig& deadlines) {
  JsonObject object(value, "deadlines");
  const auto seconds = [&](const char* key, std::chrono::seconds& target, long long least) {
    long long number = target.count();
    object.integer(key, number, least, 24 * 3600);
    target = std::chrono::seconds(number);
  };
  seconds("healthy_s", deadlines.healthy_s, 1);
  seconds("stop_s", deadlines.stop_s, 1);
  seconds("stable_s", deadlines.stable_s, 0);
  seconds("drain_s", deadlines.drain_s, 0);
  return object.finish();
}

Status read_golden(const json& value, std::optional<GoldenPrompt>& golden) {
  JsonObject object(value, "gate.golden");
  GoldenPrompt prompt;
  for (const char* key : {"url", "request", "expect"}) object.need(key);
  object.text("url", prompt.url);
  object.text("expect", prompt.expect);
  if (!prompt.url.starts_with("http://") && !prompt.url.starts_with("https://"))
    object.reject("url", "is not an http or https address",
                  "such as http://127.0.0.1:30000/generate");
  if (prompt.expect.empty()) object.reject("expect", "is empty", "a part of the right answer");
  if (const json* request = object.find("request"); request != nullptr) {
    if (!request->is_object()) object.reject("request", "is not an object");
    prompt.request = request->dump(-1, ' ', false, json::error_handler_t::replace);
  }
  golden = std::move(prompt);
  return object.finish();
}

Status read_gate(const json& value, GateConfig& gate) {
  JsonObject object(value, "gate");
  auto free = static_cast<long long>(gate.gpu_free_mib);
  object.integer("gpu_free_mib", free, 0, 1'000'000);
  gate.gpu_free_mib = static_cast<std::uint64_t>(free);
  if (const json* member = object.find("golden")) KDTREE_TRY(read_golden(*member, gate.golden));
  return object.finish();
}

Status read_validate(const json& value, ValidateConfig& validate) {
  JsonObject object(value, "validate");
  auto compares = static_cast<long long>(validate.min_compares);
  object.integer("min_compares", compares, 1, 1'000'000'000'000);
  validate.min_compares = static_cast<std::uint64_t>(compares);
  object.number("max_ulp", validate.max_ulp);
  object.number("mean_ulp", validate.mean_ulp);
  if (!(validate.max_ulp > 0)) object.reject("max_ulp", "is not above 0");
  if (!(validate.mean_ulp > 0)) object.reject("mean_ulp", "is not above 0");
  return object.finish();
}

Status read_agent(const json& value, AgentConfig& agent) {
  JsonObject object(value, "agent");
  object.text("listen", agent.listen);
  const std::size_t colon = agent.listen.rfind(':');
  const std::string port = colon == std::string::npos ? "" : agent.listen.substr(colon + 1);
  if (!agent.listen.starts_with("unix:/") &&
      (colon == 0 || !is_digits(port) || port.size() > 5 || std::stoi(port) > 65535))
    object.reject("listen", "is neither HOST:PORT nor unix:/PATH", "such as 127.0.0.1:9817");
  object.text("web_config", agent.web_config);
  if (!agent.web_config.empty() && agent.web_config.front() != '/')
    object.reject("web_config", "is not an absolute path");
  return object.finish();
}

Status read_moe(const json& value, MoeConfig& moe) {
  JsonObject object(value, "moe");
  const json* member = object.find("ep_size");
  if (member != nullptr && !member->is_null()) {
    long long size = 0;
    object.integer("ep_size", size, 1, 1024);
    moe.ep_size = static_cast<int>(size);
  }
  return object.finish();
}

Result<Config> read_document(const json& document) {
  Config config;
  JsonObject object(document, "");
  if (const json* member = object.need("engine")) KDTREE_TRY(read_engine(*member, config.engine));
  if (const json* member = object.find("kernel")) KDTREE_TRY(read_kernel(*member, config.kernel));
  if (const json* member = object.find("modes")) KDTREE_TRY(read_modes(*member, config.modes));
  if (const json* member = object.find("deadlines"))
    KDTREE_TRY(read_deadlines(*member, config.deadlines));
  if (const json* member = object.find("gate")) KDTREE_TRY(read_gate(*member, config.gate));
  if (const json* member = object.find("validate"))
    KDTREE_TRY(read_validate(*member, config.validate));
  if (const json* member = object.find("agent")) KDTREE_TRY(read_agent(*member, config.agent));
  if (const json* member = object.find("moe")) KDTREE_TRY(read_moe(*member, config.moe));
  KDTREE_TRY(object.finish());
  return config;
}

// nlohmann's own message, without its "[json.exception...]" and without the text it read last.
std::string syntax_error(const json::parse_error& error, std::string_view text) {
  const std::size_t at = std::min(text.size(), error.byte > 0 ? error.byte - 1 : 0);
  const auto line =
      1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n');
  const std::size_t newline = text.substr(0, at).rfind('\n');
  const std::size_t column = at - (newline == std::string_view::npos ? 0 : newline + 1) + 1;
  const bool closes = at < text.size() && (text[at] == '}' || text[at] == ']');
  const std::size_t before = text.substr(0, at).find_last_not_of(" \t\r\n");
  const bool comma = closes && before != std::string_view::npos && text[before] == ',';
  return "line " + std::to_string(line) + ", column " + std::to_string(column) +
         ": not valid JSON" + (comma ? ": a comma before the closing bracket" : "");
}

// nlohmann's own text ends in the number, in quotes.
std::string too_large(const json::out_of_range& error) {
  const std::string_view text = error.what();
  const auto number = text.substr(std::min(text.find('\''), text.size()));
  return "a number is too large: " + std::string(number.substr(0, 60));
}

// nlohmann keeps the last of two equal keys without a word; an operator's typo must not be hidden
// so.
struct DuplicateKeys {
  std::vector<std::set<std::string>> open;
  std::string found;
  bool operator()(int, json::parse_event_t event, const json& value) {
    if (event == json::parse_event_t::object_start) open.emplace_back();
    if (event == json::parse_event_t::object_end) open.pop_back();
    if (event == json::parse_event_t::key && !open.back().insert(value.get<std::string>()).second)
      found = value.get<std::string>();
    return true;
  }
};

}  // namespace

const ModeConfig& Config::mode(Mode which) const {
  static const ModeConfig none;
  const auto found = modes.find(which);
  return found == modes.end() ? none : found->second;
}

Result<Config> parse_config(std::string_view text, const std::string& where) {
  json document;
  DuplicateKeys duplicates;
  try {
    document = json::parse(text, std::ref(duplicates), true, true);
  } catch (const json::parse_error& error) {
    return fail(ExitCode::usage, where + ": " + syntax_error(error, text));
  } catch (const json::out_of_range& error) {
    return fail(ExitCode::usage, where + ": " + too_large(error));
  }
  if (!duplicates.found.empty())
    return fail(ExitCode::usage,
                where + ": key \"" + shown_key(duplicates.found) + "\" is given twice");
  auto config = read_document(document);
  if (!config) return prefixed(where, std::move(config).error());
  config->document = document.dump();
  return config;
}

Result<Config> load_config(const Root& root) {
  const auto path = root(paths::kConfig);
  const auto usage = [&](Error error) {
    error.code = ExitCode::usage;
    return tl::make_unexpected(std::move(error));
  };
  auto text = read_file_if_there(path, 1 << 20);
  if (!text) return usage(std::move(text).error());
  if (!*text)
    return fail(ExitCode::usage, "no configuration: " + path.string() + " does not exist",
                "write one; kdtreectl(8) shows the smallest");
  if (auto safe = check_only_root_writes(path); !safe) return usage(std::move(safe).error());
  return parse_config(**text, path.string());
}

}  // namespace kdtree
