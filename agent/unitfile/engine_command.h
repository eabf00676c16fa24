// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/unitfile/quoting.h"
#include "agent/util/result.h"

// The ExecStart= of an inference engine: understood well enough to change single flags and nothing
// else.
namespace kdtree {

// One ExecStart= value. Untouched words keep their bytes, so that quoting, `%` and `$` survive.
class EngineCommand {
 public:
  // Understands `PYTHON [-u …] -m sglang.launch_server FLAGS`, `PYTHON SCRIPT.py FLAGS` and
  // `…/sglang serve FLAGS`, behind `env A=b`, numactl, taskset, nice, ionice, chrt or stdbuf.
  // Errors: refused, each with what to do instead: shells, containers, remote and privilege tools,
  // a Python that ignores PYTHONPATH, anything else.
  static Result<EngineCommand> parse(std::string_view exec_start);

  // As it has to stand after "ExecStart=". Equal to what was parsed, byte for byte, if nothing was
  // changed.
  std::string text() const;
  // Unquoted words, `%` and `$` as written.
  std::vector<std::string> words() const;

  // Value of --mem-fraction-static; nullopt where it isn't given. Errors: refused: given and not a
  // number, or in `$VAR`.
  Result<std::optional<double>> mem_fraction() const;
  // Replaces the value in place, in the way it was written (`=` or not), or appends the flag.
  void set_mem_fraction(double fraction);

  // What follows the last of the flags named, in either way of writing it; "" = given without a
  // value; nullopt = not given.
  std::optional<std::string> value_of(const std::vector<std::string>& names) const;

  // Adds `flags` ("--x", "1", "--y"), replacing one of the same name where it stands.
  void add_flags(const std::vector<std::string>& flags);
  // Removes each flag named, with its values (`--x=1`, `--x 1 2`). One that isn't there is no
  // error.
  void remove_flags(const std::vector<std::string>& names);

  // Can these flags be replaced or removed? Errors: refused: a `$VAR` that may be the value of one,
  // or more flags.
  Status check_editable(const std::vector<std::string>& names) const;

  // Variables that the command line takes from the environment, which may hide flags.
  std::vector<std::string> variables() const;
  // The Python (or sglang program) that runs, as written.
  const std::string& program() const { return program_; }
  // Assignments of an `env A=b` in front: they beat the unit's environment.
  const std::map<std::string, std::string>& env_assignments() const { return env_assignments_; }

 private:
  struct Item {
    std::string gap;  // blanks before the word
    Word word;
  };
  Status understand();
  Status understand_env(std::size_t& at);
  Status understand_python(std::size_t at);
  Status refuse(const std::string& why, const std::string& hint) const;
  std::string text_at(std::size_t at) const;
  std::optional<std::size_t> find_flag(const std::string& name) const;
  Status check_value_of(const std::string& name) const;
  std::size_t end_of_flag(std::size_t at) const;
  void erase(std::size_t begin, std::size_t end);
  void insert(std::size_t at, const std::vector<std::string>& literals);

  std::vector<Item> items_;
  std::string tail_;            // blanks after the last word
  std::size_t first_flag_ = 0;  // index of the first word after the script, module or verb
  std::string program_;
  std::map<std::string, std::string> env_assignments_;
};

}  // namespace kdtree
