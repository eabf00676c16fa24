// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace kdtree {

// Why NVML as a whole is of no use.
enum class NvmlFailure {
  starting,         // no answer yet
  library_missing,  // no libnvidia-ml.so.1
  library_unfit,    // there is one, but it lacks a function that kdtree can't do without
  driver_not_loaded,
  driver_mismatch,  // library and kernel module are of different versions, as after an upgrade
                    // without a reboot
  no_permission,
  no_gpu,  // it works and lists no GPU
  hung,    // a call does not return
  error,   // any other; the detail says which
};

std::string_view nvml_failure_name(NvmlFailure failure);

struct NvmlError {
  NvmlFailure failure = NvmlFailure::error;
  std::string detail;  // one line for an operator
};

}  // namespace kdtree
