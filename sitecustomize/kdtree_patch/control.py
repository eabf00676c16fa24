# SPDX-License-Identifier: Apache-2.0
"""The control file (agent/stats/control_abi.h): which mode root wants armed workers to be in, now."""
import os
import stat
import struct
import zlib
from dataclasses import dataclass

from .stats_format import MODE_NAMES

MAGIC = b"KDTCTRL1"
VERSION = 1
LAYOUT = struct.Struct("<8sIIQ64sII")  # magic, version, mode, generation, release_id, crc32, reserved
CRC_AT = 88


@dataclass(frozen=True)
class Control:
    """A control file that may be obeyed. mode: stats_format.OFF/VALIDATE/ON."""

    mode: int
    generation: int
    release_id: str


class ControlError(Exception):
    """A control file that is not obeyed; the text says why."""


def pack_control(mode: int, generation: int, release_id: str = "") -> bytes:
    """The 96 bytes of a control file."""
    raw = LAYOUT.pack(MAGIC, VERSION, mode, generation, release_id.encode(), 0, 0)
    return raw[:CRC_AT] + struct.pack("<II", zlib.crc32(raw[:CRC_AT]), 0)


def read_control(path: str) -> Control:
    """Reads and checks the file. Errors: FileNotFoundError if there is none, ControlError if it must not be obeyed."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ControlError(f"control file: {error.strerror}") from error
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise ControlError("control file: not a regular file")
        if info.st_uid not in (0, os.geteuid()):
            raise ControlError(f"control file: owned by uid {info.st_uid}")
        if info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise ControlError(f"control file: writable by others (mode {stat.S_IMODE(info.st_mode):04o})")
        raw = os.read(fd, LAYOUT.size + 1)
    finally:
        os.close(fd)
    if len(raw) != LAYOUT.size:
        raise ControlError(f"control file: {len(raw)} bytes, expected {LAYOUT.size}")
    magic, version, mode, generation, release, crc, _ = LAYOUT.unpack(raw)
    if magic != MAGIC or version != VERSION:
        raise ControlError(f"control file: not one of version {VERSION}")
    if zlib.crc32(raw[:CRC_AT]) != crc:
        raise ControlError("control file: wrong checksum")
    if mode not in MODE_NAMES:
        raise ControlError(f"control file: unknown mode {mode}")
    return Control(mode, generation, release.split(b"\0", 1)[0].decode("utf-8", "replace"))


class ControlFollower:
    """Looks at one path; cheap when nothing changed (one stat)."""

    def __init__(self, path: str):
        self._path = path
        self._seen: tuple[int, ...] | None = None

    def look(self) -> Control | None:
        """The file's content if it changed since the last look, else None (no file: None).
        Errors: ControlError once for each change that must not be obeyed."""
        try:
            info = os.lstat(self._path)
        except OSError:
            self._seen = None
            return None
        seen = (info.st_dev, info.st_ino, info.st_mtime_ns, info.st_ctime_ns, info.st_size, info.st_mode)
        if seen == self._seen:
            return None
        try:
            control = read_control(self._path)
        except FileNotFoundError:
            return None
        finally:
            self._seen = seen
        return control
