# SPDX-License-Identifier: Apache-2.0
"""Rules for all sources: who may include whom (ARCHITECTURE.md), no GLOB, SPDX first, nothing of the workplace, nothing left to do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from contract_files import DASHBOARDS, ROOT, RUNBOOKS, tracked

CXX = {".h", ".cpp", ".cu", ".cuh", ".c"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def sources(folder: str) -> list[Path]:
    return [path for path in tracked() if path.suffix in CXX and name(path).startswith(folder)]


def includes(path: Path) -> list[str]:
    return [included for _, included in INCLUDE.findall(path.read_text(errors="replace"))]


def text_files() -> list[Path]:
    """Tracked text; the locked package lists, licences and pictures left out."""
    skipped = {".lock", ".png", ".svg", ".xz", ".gz", ".stats", ".bin"}
    return [path for path in tracked() if path.suffix not in skipped and path.name != "LICENSE" and b"\0" not in path.read_bytes()[:4096]]


def layers() -> list[set[str]]:
    """Folders of agent/ by the rows of ARCHITECTURE.md's table, lowest first."""
    rows = re.findall(r"^\| `agent/([a-z/ ]+)` \|", (ROOT / "ARCHITECTURE.md").read_text(), re.M)
    found = [{folder.strip("/") for folder in row.split()} for row in rows]
    assert found and found[0] == {"util"}, "the table of ARCHITECTURE.md has changed its form"
    return found


def test_every_folder_of_the_agent_is_in_the_table() -> None:
    folders = {path.relative_to(ROOT / "agent").parts[0] for path in sources("agent/")}
    assert folders <= set.union(*layers())


def test_agent_includes_go_downward() -> None:
    level = {folder: depth for depth, row in enumerate(layers()) for folder in row}
    wrong = []
    for path in sources("agent/"):
        own = path.relative_to(ROOT / "agent").parts[0]
        for included in includes(path):
            if included.startswith("agent/"):
                other = included.split("/")[1]
                if other != own and level[other] >= level[own]:
                    wrong.append(f"{name(path)} includes {included}")
    assert not wrong


def test_agent_and_kernel_share_nothing() -> None:
    wrong = [f"{name(path)} includes {included}" for path in sources("agent/") for included in includes(path)
             if included.startswith(("kdtree/", "kernel/", "cuda"))]
    wrong += [f"{name(path)} includes {included}" for path in sources("kernel/") for included in includes(path)
              if included.startswith("agent/")]
    assert not wrong


def test_torch_stays_in_its_folder() -> None:
    torch = re.compile(r"^(torch|ATen|c10|caffe2|pybind11)/|^Python\.h$")
    wrong = [f"{name(path)} includes {included}" for path in sources("") for included in includes(path)
             if torch.search(included) and not name(path).startswith("kernel/torch/")]
    assert not wrong
    assert any(torch.search(included) for path in sources("kernel/torch/") for included in includes(path)), "the rule sees nothing"


def test_the_planner_does_no_io() -> None:
    """make_plan is a function of its arguments: no header that reaches the host, no call of one that comes along with a type."""
    planners = [path for path in sources("agent/plan/") if path.name in ("plan.cpp", "make_plan.cpp", "engine_unit.cpp", "diff.cpp")]
    assert planners
    headers = re.compile(r"^(fstream|iostream|cstdio|cstdlib|chrono|stdio\.h|unistd\.h|fcntl\.h|sys/.*|"
                         r"agent/util/(atomic_file|subprocess|http_get|lock_file|clock)\.h|agent/systemd/service_manager\.h)$")
    calls = re.compile(r"\b(read_file\w*|read_image|free_bytes|sha256_(file|tree)|getenv|system_clock|std::filesystem::(exists|\w*status|is_\w+|read_symlink|\w*canonical|file_size|\w*directory\w*))\s*\(")
    assert not [f"{name(path)} includes {included}" for path in planners for included in includes(path) if headers.match(included)]
    assert not [f"{name(path)} calls {match.group(1)}" for path in planners for match in calls.finditer(path.read_text())]


def test_public_kernel_headers_are_plain_c() -> None:
    """They may include each other, the C library and the CUDA runtime."""
    allowed = re.compile(r"^(kdtree/.*|std(int|def|bool)\.h|cuda_runtime_api\.h|cuda_runtime\.h)$")
    headers = sources("kernel/include/")
    assert headers
    assert not [f"{name(path)} includes {included}" for path in headers for included in includes(path) if not allowed.match(included)]


def test_own_headers_are_included_from_the_root() -> None:
    wrong = []
    for path in sources("agent/"):
        for kind, included in INCLUDE.findall(path.read_text()):
            if kind == '"' and not included.startswith("agent/") and not (ROOT / "build" / included).exists() and (path.parent / included).exists():
                wrong.append(f"{name(path)} includes {included}")
    assert not wrong


def test_cmake_lists_its_sources() -> None:
    """GLOB may look for a library outside, never for what is ours."""
    lists = [path for path in tracked() if path.name == "CMakeLists.txt" or path.suffix == ".cmake"]
    assert lists
    ours = re.compile(r"\bfile\s*\(\s*GLOB[^)]*(\*\.(c|cc|cpp|cu|cuh|h|py|in|md|json|yml)\b|CONFIGURE_DEPENDS|GLOB_RECURSE)", re.I)
    assert ours.search("file(GLOB sources src/*.cpp)") and ours.search("file(GLOB_RECURSE all *.h)")
    assert not [name(path) for path in lists if ours.search(path.read_text())]


@pytest.mark.parametrize("folder", [DASHBOARDS, RUNBOOKS], ids=lambda folder: folder.name)
def test_all_pages_are_installed(folder: Path) -> None:
    """What CMake installs is what lies there, the promtool tests and lint exceptions left out."""
    listed = set(re.findall(r"[\w-]+\.(?:md|json|yml)", (folder / "CMakeLists.txt").read_text()))
    there = {path.name for path in folder.rglob("*") if path.suffix in (".md", ".json", ".yml")} - {"rules.test.yml"}
    assert listed == there


def test_modules_of_the_tests_have_names_of_their_own() -> None:
    """pytest puts these folders side by side on sys.path: of two modules of one name the second would get the first."""
    folders = [folder for folder in (ROOT / "tests").iterdir() if folder.is_dir() and not (folder / "__init__.py").exists()]
    homes: dict[str, list[str]] = {}
    for path in tracked():
        if path.suffix == ".py" and path.parent in folders and path.name != "conftest.py":
            homes.setdefault(path.name, []).append(name(path.parent))
    assert len(homes) > 50
    assert {module: where for module, where in homes.items() if len(where) > 1} == {}


def test_spdx_comes_first() -> None:
    """In the first line, or in the second after a #! line."""
    wanted = CXX | {".py", ".sh", ".cmake", ".yml"}
    wrong = [name(path) for path in tracked()
             if (path.suffix in wanted or path.name in ("CMakeLists.txt", "Makefile"))
             and path.stat().st_size and "SPDX-License-Identifier: Apache-2.0" not in "".join(path.read_text().splitlines(True)[:2])]
    assert not wrong


def test_nothing_of_the_workplace() -> None:
    """No path of the machine that this was written on."""
    places = re.compile("(?<![\\w./-])" + "/wo" + "rk/|" + "/tmp/" + "briefs|\\.\\./" + "shared/")
    wrong = [f"{name(path)}: {line.strip()}" for path in text_files() for line in path.read_text(errors="replace").splitlines()
             if places.search(line)]
    assert not wrong


def test_nothing_left_to_do() -> None:
    marks = re.compile(r"\b(" + "TO" + "DO|FIX" + "ME|XX" + "X)\\b")
    wrong = [f"{name(path)}: {line.strip()}" for path in text_files() for line in path.read_text(errors="replace").splitlines()
             if marks.search(line)]
    assert not wrong
