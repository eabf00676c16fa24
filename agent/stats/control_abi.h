/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/*
 * The control file /run/kdtree/control: which mode root wants armed engine processes to be in, now.
 *
 * Written by kdtreectl (temp file, fsync, rename: a reader sees a whole old or a whole new one),
 * owner root, mode 0644, 96 bytes, little endian. A worker looks every 20 ms (stat, then read if
 * changed) and obeys it when: the file is regular, owned by uid 0 or by the worker's own uid, not
 * writable by group or others; magic, version, size and crc32 are right; release_id is "" or the
 * worker's own. Anything else leaves the mode as it is and is said in `reason` of the stats file.
 * No file: the mode stays. A reboot empties /run: then the mode of the environment (KDTREE_VERIFY)
 * holds, which kdtreectl keeps equal.
 */

#define KDTREE_CONTROL_MAGIC "KDTCTRL1"
#define KDTREE_CONTROL_VERSION 1u

struct kdtree_control {
  char magic[8];
  uint32_t version;
  uint32_t mode;       /* enum kdtree_mode (stats_abi.h) */
  uint64_t generation; /* grows with each write; echoed in kdtree_stats_header.control_generation */
  char release_id[64]; /* NUL-padded; "" = any release */
  uint32_t crc32;      /* zlib's, over bytes [0, 88) */
  uint32_t reserved;
};

#ifdef __cplusplus
static_assert(offsetof(kdtree_control, crc32) == 88 && sizeof(kdtree_control) == 96,
              "control layout moved");
#else
_Static_assert(offsetof(struct kdtree_control, crc32) == 88 && sizeof(struct kdtree_control) == 96,
               "control layout moved");
#endif
