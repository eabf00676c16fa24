// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>
#include <kdtree/verify_attn.h>

#include "verify_attn_shape.h"

namespace kdtree {

// Enqueues split and combine; the params are checked and the workspace is large enough.
// kDraftApart: for an e4m3 pool. One file a type and kind of pool compiles them.
template <typename T, bool kDraftApart>
cudaError_t launch_verify_attn(const kdtree_verify_attn_params& params, const Shape& shape,
                               cudaStream_t stream);

}  // namespace kdtree
