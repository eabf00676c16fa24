/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * What the functions of this library return: 0 = done, above 0 = a cudaError_t, below 0 = one of
 * these. They never print, log, throw, allocate device memory or synchronise; a function that
 * returns non-zero has enqueued nothing.
 */
enum kdtree_status {
  KDTREE_OK = 0,
  KDTREE_BAD_STRUCT = -1,    /* struct_bytes is not what this library was built with */
  KDTREE_BAD_SHAPE = -2,     /* batch, draft_tokens or heads out of range */
  KDTREE_BAD_DTYPE = -3,     /* dtype not supported on this device */
  KDTREE_BAD_POINTER = -4,   /* a required pointer is null, or misaligned */
  KDTREE_BAD_STRIDE = -5,    /* a stride breaks the alignment that the header asks for */
  KDTREE_BAD_WORKSPACE = -6, /* workspace null, misaligned or too small */
  KDTREE_NO_CUDA = -7,       /* built without the CUDA kernels */
  KDTREE_BAD_DEVICE =
      -8, /* the current GPU lacks what the kernels need (sm_80 or newer, 99 KiB shared memory) */
  KDTREE_BAD_SCALE = -9, /* k_scale or v_scale is not a positive finite number */
};

#if defined(__GNUC__)
#define KDTREE_API __attribute__((visibility("default")))
#else
#define KDTREE_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* One line of English for any value of above; never null, static storage. */
KDTREE_API const char* kdtree_status_string(int status);

/* 1 if the CUDA kernels are in this library, else 0. */
KDTREE_API int kdtree_has_cuda(void);

#ifdef __cplusplus
}
#endif
