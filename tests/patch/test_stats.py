# SPDX-License-Identifier: Apache-2.0
"""The stats file's writer and reader, against the C header and against hostile folders."""
import math
import os
import re
import stat
import struct
import subprocess
import sys
from array import array
from pathlib import Path

import pytest

from patch_rig import HERE
from kdtree_patch import control, stats
from kdtree_patch import stats_format as f

ROOT = HERE.parent.parent


@pytest.fixture(scope="module")
def offsets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    program = tmp_path_factory.mktemp("c") / "offsets"
    subprocess.run(["cc", "-std=c11", "-Wall", "-Werror", "-I", ROOT, "-o", program, HERE / "offsets.c"], check=True)
    lines = subprocess.run([program], check=True, capture_output=True, text=True).stdout.split("\n")
    return {name: (at, size) for name, at, size in (line.split() for line in lines if line)}


def test_every_field_is_where_the_c_header_has_it(offsets: dict[str, tuple[str, str]]) -> None:
    ours = {f"header.{name}": (str(at), str(packer.size)) for name, (at, packer) in f.PLACES.items()}
    ours["header.batches"] = (str(f.BATCHES_AT), str(f.MAX_BATCHES * f.BATCH.size))
    ours["header.sections"] = (str(f.SECTIONS_AT), str(f.MAX_SECTIONS * f.SECTION.size))
    ours["header.reserved1"] = (str(f.RESERVED_AT), str(f.HEADER_BYTES - f.RESERVED_AT))
    for struct_name, layout, names in (
            ("stats_section", f.SECTION, "kind elem_bytes offset rows cols reserved"),
            ("stats_batch", f.BATCH, "batch reserved compares calls"),
            ("control", control.LAYOUT, "magic version mode generation release_id crc32 reserved")):
        at = 0
        for name, form in zip(names.split(), re.findall(r"\d*[a-zA-Z]", layout.format.lstrip("<"))):
            ours[f"{struct_name}.{name}"] = (str(at), str(struct.calcsize("<" + form)))
            at += struct.calcsize("<" + form)
    theirs = {name: place for name, place in offsets.items() if not name.startswith("constant.")}
    assert ours == theirs


def test_every_field_of_the_header_is_printed_by_the_c_program() -> None:
    text = (ROOT / "agent/stats/stats_abi.h").read_text()
    body = text[text.index("struct kdtree_stats_header {"):]
    body = re.sub(r"/\*.*?\*/", "", body[:body.index("};")], flags=re.DOTALL)
    names = re.findall(r"(\w+)(?:\[[^\]]*\])?;", body)
    printed = re.findall(r"H\((\w+)\)", (HERE / "offsets.c").read_text())
    assert names == [name for name in printed if name != "field"]


def test_constants_and_enums_are_those_of_the_header(offsets: dict[str, tuple[str, str]]) -> None:
    assert offsets["constant.magic"][0].encode() == f.MAGIC
    assert offsets["constant.control_magic"][0].encode() == control.MAGIC
    assert offsets["constant.version"] == (str(f.VERSION), str(control.VERSION))
    assert offsets["constant.header_bytes"][0] == str(f.HEADER_BYTES)
    assert offsets["constant.max_bytes"][0] == str(f.MAX_BYTES)
    assert offsets["constant.max_sections"] == (str(f.MAX_SECTIONS), str(f.MAX_BATCHES))
    assert offsets["constant.max_reasons"][0] == str(f.MAX_REASONS)
    assert offsets["constant.state"] == (str(f.ACTIVE), str(f.REFUSED))
    assert offsets["constant.mode"] == (str(f.VALIDATE), str(f.ON))
    assert offsets["constant.sections"] == (str(f.SECTION_EXPERT_TOKENS), str(f.SECTION_PASS_ROWS))
    assert offsets["constant.share"][0] == str(f.STRAGGLER_SHARE)
    text = (ROOT / "agent/stats/stats_abi.h").read_text()
    reasons = re.findall(r"KDTREE_BACK_(\w+)\s*=\s*(\d+)", text)
    assert [(name.lower(), int(value)) for name, value in reasons] == [(n, i) for i, n in enumerate(f.BACK_NAMES)]
    assert {f"BACK_{name}": int(value) for name, value in reasons} == {
        name: value for name, value in vars(f).items() if name.startswith("BACK_") and name != "BACK_NAMES"}


def test_a_first_publication_says_unknown_where_nothing_is_known(tmp_path: Path) -> None:
    writer = stats.StatsWriter(str(tmp_path))
    with pytest.raises(stats.StatsError, match="consistent") as error:
        stats.read_stats(writer.path)
    assert error.value.kind == "damaged"
    writer.publish({})
    found = stats.read_stats(writer.path)
    assert [found[n] for n in ("tp_rank", "sort_state", "graphs", "start_mode", "worst_layer", "worst_batch", "worst_head")] == [-1] * 7
    assert math.isnan(found["max_abs"]) and math.isnan(found["max_ulp"])
    assert (found["pid"], found["sequence"], found["publications"]) == (os.getpid(), 2, 1)
    assert found["pid_start_ticks"] == stats.start_ticks(os.getpid()) > 0
    assert found["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert stat.S_IMODE(os.stat(writer.path).st_mode) == 0o644


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    writer = stats.StatsWriter(str(tmp_path))
    sections = [(f.SECTION_EXPERT_TOKENS, 2, 3, array("Q", [1, 2, 3, 4, 5, 2**63])),
                (f.SECTION_LAYER_STEPS, 2, 1, array("Q", [7, 8]))]
    values = {"tp_rank": 3, "mode": f.ON, "max_ulp": 1.5, "handed_back": list(range(32)), "reason": "é" * 200,
              "calls_kernel": 2**64 - 1, "release_id": "r" * 64}
    before = os.stat(writer.path).st_ino
    writer.publish(values, {1: (10, 11), 8: (0, 0), 16: (20, 20)}, sections)
    found = stats.read_stats(writer.path)
    assert found["handed_back"] == tuple(range(32)) and found["calls_kernel"] == 2**64 - 1
    assert found["reason"] == "é" * 128 and found["release_id"] == "r" * 64
    assert found["batches"] == {1: (10, 11), 16: (20, 20)}, "a size that served nothing has no row"
    assert found["sections"] == {1: [[1, 2, 3], [4, 5, 2**63]], 3: [[7], [8]]}
    assert os.stat(writer.path).st_ino != before, "a file of another size is a new file"
    grown = os.stat(writer.path).st_ino
    writer.publish(values, {b: (1, b) for b in range(1, 61)}, sections)
    batches = stats.read_stats(writer.path)["batches"]
    assert len(batches) == f.MAX_BATCHES and list(batches) == list(range(f.MAX_BATCHES)), "0 holds what has no row"
    assert batches[0] == (13, sum(range(48, 61))) and batches[47] == (1, 47)
    assert os.stat(writer.path).st_ino == grown
    assert os.listdir(tmp_path) == [os.path.basename(writer.path)]


def test_a_reader_never_sees_half_a_publication(tmp_path: Path) -> None:
    """A reader process against a writer that publishes as fast as it can: two fields and a section always agree."""
    writer = stats.StatsWriter(str(tmp_path))
    writer.publish({"calls_kernel": 0, "calls_engine": 0}, {}, [(1, 50, 8, array("Q", [0] * 400))])
    reader = subprocess.Popen([sys.executable, "-c", """
import sys
sys.path.insert(0, sys.argv[2])
from kdtree_patch.stats import StatsError, read_stats
good, torn, seen = 0, 0, set()
while good < 300 or (len(seen) < 11 and good < 30000):
    try:
        found = read_stats(sys.argv[1])
    except StatsError as error:  # torn, or the writer lost its CPU in the middle: said, never shown
        assert error.kind in ('torn', 'damaged'), error
        torn += 1
        continue
    values = {v for row in found['sections'][1] for v in row} | {found['calls_kernel'], found['calls_engine']}
    assert len(values) == 1, values
    seen |= values
    good += 1
print(len(seen), torn)
""", writer.path, str(ROOT / "sitecustomize")], stdout=subprocess.PIPE, text=True)
    count = 0
    while reader.poll() is None and count < 2_000_000:
        count += 1
        writer.publish({"calls_kernel": count, "calls_engine": count}, {}, [(1, 50, 8, array("Q", [count] * 400))])
    assert reader.wait() == 0
    different = int(reader.communicate()[0].split()[0])
    assert different > 10, "the reader must have seen the writer at work"


@pytest.mark.parametrize("damage, kind", [
    (lambda raw: raw[:100], "foreign"), (lambda raw: b"X" + raw[1:], "foreign"), (lambda raw: raw + b"\0", "foreign"),
    (lambda raw: raw[:3000] + b"\1" + raw[3001:], "damaged"), (lambda raw: b"", "foreign"),
    (lambda raw: raw[:24] + (3).to_bytes(8, "little") + raw[32:], "damaged"),
    (lambda raw: raw[:8] + (1).to_bytes(4, "little") + raw[12:], "foreign")])
def test_damaged_files_are_told_apart(tmp_path: Path, damage, kind: str) -> None:  # noqa: ANN001
    writer = stats.StatsWriter(str(tmp_path))
    writer.publish({})
    path = tmp_path / "1.stats"
    path.write_bytes(damage(Path(writer.path).read_bytes()))
    with pytest.raises(stats.StatsError) as error:
        stats.read_stats(str(path))
    assert error.value.kind == kind


def test_reader_refuses_links_and_pipes(tmp_path: Path) -> None:
    writer = stats.StatsWriter(str(tmp_path))
    writer.publish({})
    (tmp_path / "link.stats").symlink_to(writer.path)
    os.mkfifo(tmp_path / "pipe.stats")
    for name, kind in (("link.stats", "foreign"), ("pipe.stats", "foreign"), ("none.stats", "missing")):
        with pytest.raises(stats.StatsError) as error:
            stats.read_stats(str(tmp_path / name))
        assert error.value.kind == kind, name


def test_a_link_in_the_place_of_the_file_is_removed_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("untouched")
    folder = tmp_path / "stats"
    folder.mkdir()
    (folder / f"{os.getpid()}.stats").symlink_to(precious)
    writer = stats.StatsWriter(str(folder))
    writer.publish({})
    assert precious.read_text() == "untouched"
    assert not os.path.islink(writer.path) and stats.read_stats(writer.path)["pid"] == os.getpid()


def test_folders_that_cant_be_trusted(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        stats.StatsWriter(str(tmp_path / "file"))
    with pytest.raises(OSError):
        stats.StatsWriter(str(tmp_path / "none"))
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(OSError, match="writable by everybody"):
        stats.StatsWriter(str(tmp_path / "open"))


def test_remove_takes_the_file_away_and_forget_leaves_it(tmp_path: Path) -> None:
    writer = stats.StatsWriter(str(tmp_path))
    writer.publish({})
    before = Path(writer.path).read_bytes()
    writer.forget()
    writer.publish({"mode": f.ON})
    writer.remove()
    assert Path(writer.path).read_bytes() == before
    other = stats.StatsWriter(str(tmp_path))
    other.remove()
    assert os.listdir(tmp_path) == []
