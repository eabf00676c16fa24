// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "agent/config/config.h"
#include "agent/gate/ranks.h"
#include "agent/nvml/list_gpus.h"
#include "agent/util/result.h"

// What the health gate asks for where the configuration wants it. Each returns what is still
// missing
// ("" = nothing), or the error (rolled_back) that ends the gate.
namespace kdtree {

// Posts the prompt. An answer that isn't 200 is missing; one that is, and without what is expected,
// is an error that quotes it.
Result<std::string> ask_golden(const GoldenPrompt& prompt);

// Has every GPU that a rank reports (all, where none reports one) `least_bytes` left? Too little is
// an error; a GPU whose memory can't be read is missing.
Result<std::string> check_headroom(const Result<GpuList>& gpus, const RankSet& ranks,
                                   std::uint64_t least_bytes);

}  // namespace kdtree
