// SPDX-License-Identifier: Apache-2.0
#include "verify_attn_launch.cuh"

template cudaError_t kdtree::launch_verify_attn<__nv_bfloat16, true>(
    const kdtree_verify_attn_params&, const Shape&, cudaStream_t);
