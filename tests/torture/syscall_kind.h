// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace torture {

// Where a system call says what it is about, and whether it can change anything that outlives the
// process.
enum class SyscallKind {
  harmless,       // reads, or concerns the process alone
  open,           // changes something if it creates or truncates
  output,         // sends bytes through a descriptor
  by_descriptor,  // changes what its first argument is open on
  one_path,       // path in the first argument
  one_path_at,    // path in the second
  two_paths,      // paths in the first two
  two_paths_at,   // paths in the second and the fourth
  spawn,          // starts a process, or a thread: that changes nothing
  map,            // of a file, to be written to and seen by others, or of memory
  unknown,        // in no table: counts as a change
};

SyscallKind kind_of(std::uint64_t number);

// Its name, "syscall_<number>" for one that is in no table.
std::string name_of(std::uint64_t number);

}  // namespace torture
