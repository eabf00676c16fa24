# SPDX-License-Identifier: Apache-2.0
"""The control file as a worker reads it, hostile variants first."""
import os
import struct
import zlib
from pathlib import Path

import pytest

from kdtree_patch import stats_format as f
from kdtree_patch.control import Control, ControlError, ControlFollower, pack_control, read_control

GOOD = pack_control(f.VALIDATE, 7, "r1")


def place(path: Path, raw: bytes = GOOD, mode: int = 0o644) -> str:
    path.write_bytes(raw)
    path.chmod(mode)
    return str(path)


def sealed(raw: bytes) -> bytes:
    return raw[:88] + struct.pack("<II", zlib.crc32(raw[:88]), 0)


def test_a_good_file(tmp_path: Path) -> None:
    assert len(GOOD) == 96
    assert read_control(place(tmp_path / "c")) == Control(f.VALIDATE, 7, "r1")


@pytest.mark.parametrize("raw, said", [
    (b"", "0 bytes"), (GOOD[:95], "95 bytes"), (GOOD + b"\0", "97 bytes"),
    (sealed(b"KDTCTRL2" + GOOD[8:88]), "version"), (sealed(GOOD[:8] + b"\2\0\0\0" + GOOD[12:88]), "version"),
    (GOOD[:12] + b"\2" + GOOD[13:], "checksum"), (GOOD[:88] + b"\0\0\0\0" + GOOD[92:], "checksum"),
    (pack_control(3, 1), "unknown mode 3")])
def test_files_that_say_nothing(tmp_path: Path, raw: bytes, said: str) -> None:
    with pytest.raises(ControlError, match=said):
        read_control(place(tmp_path / "c", raw))


@pytest.mark.parametrize("mode", [0o666, 0o664, 0o646])
def test_a_file_that_others_can_write(tmp_path: Path, mode: int) -> None:
    with pytest.raises(ControlError, match="writable by others"):
        read_control(place(tmp_path / "c", mode=mode))


def test_a_link_a_folder_a_pipe(tmp_path: Path) -> None:
    place(tmp_path / "real")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe", 0o644)
    for name in ("link", "folder", "pipe"):
        with pytest.raises(ControlError):
            read_control(str(tmp_path / name))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_of_somebody_else(tmp_path: Path) -> None:
    path = place(tmp_path / "c")
    os.chown(path, 12345, 12345)
    with pytest.raises(ControlError, match="uid 12345"):
        read_control(path)


def test_the_follower_reads_each_change_once(tmp_path: Path) -> None:
    path = tmp_path / "c"
    follower = ControlFollower(str(path))
    assert follower.look() is None
    place(path)
    assert follower.look() == Control(f.VALIDATE, 7, "r1")
    assert follower.look() is None
    place(tmp_path / "new", pack_control(f.ON, 8))
    os.rename(tmp_path / "new", path)
    assert follower.look() == Control(f.ON, 8, "")
    path.chmod(0o666)
    with pytest.raises(ControlError):
        follower.look()
    assert follower.look() is None, "said once, not every 20 ms"
    path.unlink()
    assert follower.look() is None
    place(path, pack_control(f.OFF, 9))
    assert follower.look() == Control(f.OFF, 9, "")
