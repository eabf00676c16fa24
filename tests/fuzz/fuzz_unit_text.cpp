// SPDX-License-Identifier: Apache-2.0
#include "agent/unitfile/engine_command.h"
#include "agent/unitfile/environment.h"
#include "agent/unitfile/quoting.h"
#include "agent/unitfile/unit_file.h"
#include "fuzz_input.h"

namespace {

// Does `literal`, quoted by `quote`, come back as one word?
void check_quoting(const std::string& literal) {
  if (literal.find('\0') != std::string::npos) return;
  const auto words = kdtree::split_words(kdtree::quote_for_exec(literal));
  fuzz::require(words && words->size() == 1, "a quoted text is one word");
  const auto back = kdtree::literal_of_exec((*words)[0].text);
  fuzz::require(back && *back == literal, "a quoted text means the same");
  const auto setting = kdtree::split_words(kdtree::quote_for_setting(literal));
  fuzz::require(setting && setting->size() == 1, "a quoted setting is one word");
}

void check_command(const std::string& value) {
  auto command = kdtree::EngineCommand::parse(value);
  if (!command) return fuzz::require_one_line(command.error());
  fuzz::require(command->text() == value, "an unchanged command keeps its bytes");
  const auto words = command->words();
  if (!command->check_editable({"--mem-fraction-static", "--disable-cuda-graph"})) return;
  command->set_mem_fraction(0.5);
  const auto fraction = command->mem_fraction();
  fuzz::require(fraction && *fraction && **fraction == 0.5, "a fraction that was set is there");
  command->remove_flags({"--mem-fraction-static"});
  command->add_flags({"--disable-cuda-graph"});
  command->remove_flags({"--disable-cuda-graph"});
  const auto again = kdtree::EngineCommand::parse(command->text());
  fuzz::require(again.has_value(), "an edited command is still understood");
  fuzz::require(again->words().size() <= words.size(), "what was added has been removed");
}

void check_unit(std::string_view text) {
  const auto unit = kdtree::UnitFile::parse(text, "x.service");
  if (!unit) return fuzz::require_one_line(unit.error());
  fuzz::require(unit->text() == text, "an unchanged unit keeps its bytes");
  for (const auto& line : unit->lines()) {
    if (line.kind != kdtree::UnitLine::Kind::setting) continue;
    if (const auto words = kdtree::split_words(line.value); !words)
      fuzz::require_one_line(words.error());
    check_command(line.value);
  }
  if (const auto environment = kdtree::environment_of({*unit}); !environment)
    fuzz::require_one_line(environment.error());
  kdtree::effective_values({*unit, *unit}, "Service", "ExecStart");
}

void check_environment_file(std::string_view text) {
  for (const auto& [name, value] : kdtree::parse_environment_file(text)) {
    fuzz::require(!name.empty() && name.find('=') == std::string::npos, "a name is a name");
    const auto quoted = kdtree::quote_for_environment_file(value);
    if (!quoted) {
      fuzz::require_one_line(quoted.error());
      continue;
    }
    const auto back = kdtree::parse_environment_file(name + "=" + *quoted + "\n");
    fuzz::require(back.contains(name) && back.at(name) == value, "a quoted value means the same");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  switch (fuzz::choose(text, 5)) {
    case 0:
      check_unit(text);
      break;
    case 1:
      check_command(std::string(text));
      break;
    case 2:
      check_environment_file(text);
      break;
    case 3:
      check_quoting(std::string(text));
      break;
    default:
      kdtree::referenced_variables(text);
      kdtree::has_specifier(text);
      kdtree::compose_path_list("/opt/kdtree/current/python", text);
  }
  return 0;
}
