# SPDX-License-Identifier: Apache-2.0
"""Writer (one a process) and reader of the stats file. Layout: stats_format.py; contract: agent/stats/stats_abi.h."""
import mmap
import os
import stat
import time
import zlib
from array import array

from . import stats_format as f

Section = tuple[int, int, int, array]  # kind, rows, cols, row-major counters (array of type Q, rows * cols long)
Batches = dict[int, tuple[int, int]]  # requests in the call -> compares, calls served; 0 = all sizes not told apart


class StatsError(Exception):
    """A stats file that can't be read; `kind` is missing, foreign, torn or damaged."""

    def __init__(self, kind: str, message: str):
        super().__init__(message)
        self.kind = kind


def boot_id() -> str:
    """This boot's id, "" where /proc doesn't say."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def start_ticks(pid: int) -> int:
    """Start time of `pid` in clock ticks since boot (field 22 of /proc/<pid>/stat); 0 if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rsplit(b")", 1)[1].split()[19])
    except (OSError, IndexError, ValueError):
        return 0


def _layout(sections: list[Section]) -> tuple[list[tuple[int, int, int, int]], int]:
    """(kind, offset, rows, cols) of each section, and the file's size."""
    at, places = f.HEADER_BYTES, []
    for kind, rows, cols, _ in sections:
        places.append((kind, at, rows, cols))
        at += rows * cols * 8
    return places, at


def _fitting(batches: Batches) -> list[tuple[int, tuple[int, int]]]:
    """Sorted, as many as the file has rows for: of more, the largest sizes are summed up under 0."""
    kept = {size: counts for size, counts in sorted(batches.items()) if any(counts)}
    while len(kept) > f.MAX_BATCHES:
        compares, calls = kept.popitem()[1]
        before = kept.pop(0, (0, 0))
        kept = {0: (before[0] + compares, before[1] + calls), **kept}
    return list(kept.items())


class StatsWriter:
    """Owns <directory>/<pid>.stats of the process that made it. Not thread-safe: one thread publishes.

    Errors: OSError from the constructor where the file can't be made (a directory that others can write to included);
    publish() never raises for text that is too long, it cuts it.
    """

    def __init__(self, directory: str):
        self._pid = os.getpid()
        self._directory = directory
        self.path = os.path.join(directory, f"{self._pid}.stats")
        self._identity = {"pid": self._pid, "pid_start_ticks": start_ticks(self._pid), "boot_id": boot_id()}
        self._publications = 0
        self._sequence = 0
        self._shape: list[tuple[int, int, int, int]] = []
        self._map: mmap.mmap | None = None
        made = os.stat(directory)
        if not stat.S_ISDIR(made.st_mode):
            raise NotADirectoryError(20, "not a directory", directory)
        if made.st_mode & stat.S_IWOTH:
            raise PermissionError(13, "writable by everybody, so not trusted", directory)
        self._map = self._make(self.path, f.HEADER_BYTES)

    @staticmethod
    def _make(path: str, size: int) -> mmap.mmap:
        """A new file of `size` zero bytes, mapped. What lies at `path` (a dead namesake's file, a link) is removed."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            fd = os.open(path, flags, 0o644)
        except FileExistsError:
            os.unlink(path)
            fd = os.open(path, flags, 0o644)
        try:
            os.fchmod(fd, 0o644)
            os.posix_fallocate(fd, 0, size)  # no SIGBUS later on a full file system
            return mmap.mmap(fd, size)
        except BaseException:
            os.unlink(path)
            raise
        finally:
            os.close(fd)

    def publish(self, values: dict[str, object], batches: Batches | None = None,
                sections: list[Section] | None = None) -> None:
        """Writes one consistent set. values: header fields by name; batches, sections: see there. Errors: OSError where a file of another size is needed and can't be made."""
        if self._map is None or os.getpid() != self._pid:
            return
        sections = sections or []
        places, size = _layout(sections)
        grown = places != self._shape and size != len(self._map)
        target = self._make(self.path + ".new", size) if grown else self._map
        sequence = 0 if grown else self._sequence
        buffer = self._render(values, batches or {}, sections, places, size)
        target[f.SEQUENCE_AT:f.SEQUENCE_AT + 8] = (sequence + 1).to_bytes(8, "little")
        target[0:f.SEQUENCE_AT] = buffer[0:f.SEQUENCE_AT]
        target[f.CHECKED_FROM:size] = buffer[f.CHECKED_FROM:size]
        target[f.CRC_AT:f.CRC_AT + 4] = zlib.crc32(memoryview(buffer)[f.CHECKED_FROM:]).to_bytes(4, "little")
        target[f.SEQUENCE_AT:f.SEQUENCE_AT + 8] = (sequence + 2).to_bytes(8, "little")
        self._sequence, self._shape = sequence + 2, places
        if grown:
            os.rename(self.path + ".new", self.path)
            self._map.close()
            self._map = target

    def _render(self, values: dict[str, object], batches: Batches, sections: list[Section],
                places: list[tuple[int, int, int, int]], size: int) -> bytearray:
        self._publications += 1
        buffer = bytearray(size)
        fields = {**f.UNKNOWN, **values, **self._identity, "magic": f.MAGIC, "version": f.VERSION,
                  "header_bytes": f.HEADER_BYTES, "file_bytes": size, "publications": self._publications,
                  "updated_boottime_ns": time.clock_gettime_ns(time.CLOCK_BOOTTIME)}
        kept = _fitting(batches)
        fields.update(batch_count=len(kept), section_count=len(sections))
        for name, value in fields.items():
            f.put(buffer, name, value)
        for i, (batch, counts) in enumerate(kept):
            f.BATCH.pack_into(buffer, f.BATCHES_AT + i * f.BATCH.size, batch, 0, *counts)
        for i, ((kind, at, rows, cols), section) in enumerate(zip(places, sections)):
            f.SECTION.pack_into(buffer, f.SECTIONS_AT + i * f.SECTION.size, kind, 8, at, rows, cols, 0)
            buffer[at:at + rows * cols * 8] = section[3].tobytes()
        return buffer

    def forget(self) -> None:
        """After fork, in the child: never write to the parent's file again."""
        self._map = None

    def remove(self) -> None:
        """At exit: takes the file away, if this is the process that made it."""
        if self._map is None or os.getpid() != self._pid:
            return
        self._map = None
        try:
            os.unlink(self.path)
        except OSError:
            pass


def _parse(raw: bytes, path: str) -> dict[str, object]:
    result: dict[str, object] = {name: f.get(raw, name) for name, _ in f.FIELDS if not name.startswith("reserved")}
    if result["batch_count"] > f.MAX_BATCHES or result["section_count"] > f.MAX_SECTIONS:
        raise StatsError("damaged", f"{path}: more batches or sections than fit")
    result["batches"] = {}
    for i in range(result["batch_count"]):
        batch, _, *counts = f.BATCH.unpack_from(raw, f.BATCHES_AT + i * f.BATCH.size)
        result["batches"][batch] = tuple(counts)
    result["sections"] = {}
    for i in range(result["section_count"]):
        kind, each, at, rows, cols, _ = f.SECTION.unpack_from(raw, f.SECTIONS_AT + i * f.SECTION.size)
        end = at + rows * cols * 8
        if each != 8 or at % 8 or at < f.HEADER_BYTES or end > len(raw):
            raise StatsError("damaged", f"{path}: section {kind} lies outside the file")
        flat = array("Q", raw[at:end])
        result["sections"][kind] = [list(flat[r * cols:(r + 1) * cols]) for r in range(rows)]
    return result


def read_stats(path: str, tries: int = 5) -> dict[str, object]:
    """All header fields by name, `batches` {size: (compares, calls)} and `sections` {kind: rows of counters}.

    Errors: StatsError missing (no such file), foreign (not a stats file, another version, a wrong size),
    torn (kept changing while it was read), damaged (checksum or bounds)."""
    sequences = set()
    for attempt in range(tries):
        if attempt:
            time.sleep(0.001)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise StatsError("missing" if error.errno == 2 else "foreign", f"{path}: {error.strerror}") from error
        with os.fdopen(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise StatsError("foreign", f"{path}: not a regular file")
            raw = file.read(f.MAX_BYTES + 1)
        if len(raw) < f.HEADER_BYTES or len(raw) > f.MAX_BYTES:
            raise StatsError("foreign", f"{path}: {len(raw)} bytes are not a stats file")
        sequence = f.get(raw, "sequence")
        sequences.add(sequence)
        if sequence == 0 or sequence % 2:
            continue
        if raw[:8] != f.MAGIC or f.get(raw, "version") != f.VERSION or f.get(raw, "header_bytes") != f.HEADER_BYTES:
            raise StatsError("foreign", f"{path}: not a stats file of version {f.VERSION}")
        if f.get(raw, "file_bytes") != len(raw):
            raise StatsError("foreign", f"{path}: says {f.get(raw, 'file_bytes')} bytes, has {len(raw)}")
        if zlib.crc32(raw[f.CHECKED_FROM:]) == f.get(raw, "crc32"):
            return _parse(raw, path)
    kind = "torn" if len(sequences) > 1 else "damaged"
    raise StatsError(kind, f"{path}: no consistent copy in {tries} reads")
