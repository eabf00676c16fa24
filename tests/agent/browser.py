# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium for the tests, and the pixels of what it drew."""
from __future__ import annotations

import struct
import subprocess
import zlib
from pathlib import Path

LIGHT, DARK = 1, 0  # Blink's preferredColorScheme


def chromium(folder: Path, url: str, *more: str, scheme: int = LIGHT) -> str:
    """Standard output of a headless Chromium that lets the page run for some seconds."""
    command = ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run",
               f"--user-data-dir={folder / 'chromium'}", f"--blink-settings=preferredColorScheme={scheme}", "--window-size=1280,1180",
               "--virtual-time-budget=5000", *more, url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def pixels(picture: Path) -> tuple[int, int, list[bytes]]:
    """Width, height and unfiltered RGB(A) rows of an 8-bit PNG."""
    data = picture.read_bytes()
    at, packed, size = 8, b"", None
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at:at + 8])
        body = data[at + 8:at + 8 + length]
        if kind == b"IHDR":
            size = struct.unpack(">IIBBBBB", body)
        if kind == b"IDAT":
            packed += body
        at += 12 + length
    width, height, depth, colour = size[:4]
    assert depth == 8 and colour in (2, 6)
    channels = 3 if colour == 2 else 4
    raw, stride, rows, before = zlib.decompress(packed), width * channels, [], bytearray(width * channels)
    for y in range(height):
        kind, row = raw[y * (stride + 1)], bytearray(raw[y * (stride + 1) + 1:(y + 1) * (stride + 1)])
        for i in range(stride):
            left = row[i - channels] if i >= channels else 0
            up, corner = before[i], before[i - channels] if i >= channels else 0
            if kind == 1:
                row[i] = (row[i] + left) & 255
            elif kind == 2:
                row[i] = (row[i] + up) & 255
            elif kind == 3:
                row[i] = (row[i] + (left + up) // 2) & 255
            elif kind == 4:
                paeth = left + up - corner
                nearest = min((abs(paeth - left), 0, left), (abs(paeth - up), 1, up), (abs(paeth - corner), 2, corner))[2]
                row[i] = (row[i] + nearest) & 255
        rows.append(bytes(row))
        before = row
    return width, height, rows
