/* SPDX-License-Identifier: Apache-2.0 */
/* A planted bug, for LD_PRELOAD: rename() over a file writes that file in place, half by half. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

int rename(const char *from, const char *to) {
  struct stat info;
  if (lstat(from, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size > 1 << 20)
    return renameat(AT_FDCWD, from, AT_FDCWD, to);
  static char bytes[1 << 20];
  int in = open(from, O_RDONLY | O_CLOEXEC);
  ssize_t size = in < 0 ? -1 : read(in, bytes, sizeof bytes);
  if (in >= 0) close(in);
  int out = size < 0 ? -1 : open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, info.st_mode & 07777);
  if (out < 0) return -1;
  int whole = write(out, bytes, size / 2) == size / 2 && fsync(out) == 0 &&
              write(out, bytes + size / 2, size - size / 2) == size - size / 2 && fsync(out) == 0;
  close(out);
  return whole ? unlink(from) : -1;
}
