# SPDX-License-Identifier: Apache-2.0
"""What the build promises: its presets, warnings as errors in every source of ours, a summary of features, where nvcc is looked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from contract_files import ROOT, program, tracked

CUDART = Path("nvidia/cu13/lib/libcudart.so.13")


def configure(source: Path, build: Path, *options: str, **environ: str) -> subprocess.CompletedProcess:
    """`cmake -S source -B build` with nothing of this process's environment but PATH, which `environ` may replace."""
    return subprocess.run(["cmake", "-S", source, "-B", build, *options], capture_output=True, text=True, check=False,
                          env={"PATH": os.environ["PATH"], **environ})


def fake_nvcc(folder: Path, version: str) -> Path:
    """A toolkit's folder whose bin/nvcc only says its version."""
    (folder / "bin").mkdir(parents=True)
    nvcc = folder / "bin" / "nvcc"
    nvcc.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {version}, V{version}.0'\n")
    nvcc.chmod(0o755)
    return nvcc


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    """An engine's python3 whose site-packages have a torch and NVIDIA's nvcc."""
    site = tmp_path / "engine"
    (site / "torch").mkdir(parents=True)
    (site / "torch" / "__init__.py").write_text("")
    fake_nvcc(site / "nvidia" / "cu13", "13.4")
    (site / CUDART).parent.mkdir()
    (site / CUDART).write_text("")
    python = tmp_path / "python3"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={site} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return python


def bare_path(tmp_path: Path) -> str:
    """A PATH that has what cmake needs and no nvcc."""
    folder = tmp_path / "path"
    folder.mkdir()
    for tool in ("cmake", "make", "cc", "c++", "ar", "ranlib", "ld", "as", "sh"):
        (folder / tool).symlink_to(subprocess.run(["which", tool], capture_output=True, text=True, check=True).stdout.strip())
    return str(folder)


def kernel(tmp_path: Path, name: str, engine: Path, *options: str, **environ: str) -> subprocess.CompletedProcess:
    return configure(ROOT / "kernel", tmp_path / name, "-DKDTREE_WITH_TORCH=OFF", f"-DKDTREE_PYTHON={engine}", *options, **environ)


def test_presets() -> None:
    presets = json.loads((ROOT / "CMakePresets.json").read_text())
    named = {preset["name"]: preset.get("cacheVariables", {}) for preset in presets["configurePresets"]}
    assert {"dev", "gpu", "asan", "tidy", "release"} <= named.keys()
    assert named["asan"]["KDTREE_SANITIZE"] == "address,undefined" and named["tidy"]["KDTREE_TIDY"] == "ON"
    assert named["gpu"]["KDTREE_WITH_CUDA"] == "ON" and named["release"]["KDTREE_WITH_TESTS"] == "OFF"
    assert "cmake_minimum_required(VERSION 3.25)" in (ROOT / "CMakeLists.txt").read_text()


def test_every_source_of_ours_is_compiled_with_warnings_as_errors() -> None:
    build = program("kdtree-agent").parents[1]
    commands = json.loads((build / "compile_commands.json").read_text())
    compiled = {Path(entry["file"]).resolve(): entry["command"].split() for entry in commands}
    ours = {path for path in compiled if path.is_relative_to(ROOT) and not path.is_relative_to(build.resolve())}
    assert len(ours) > 100
    for path in ours:
        wanted = {"-Wall", "-Wextra", "-Wconversion", "-Werror"} | ({"-std=c++20"} if path.suffix == ".cpp" else set())
        assert wanted <= set(compiled[path]), f"{path}: {wanted - set(compiled[path])}"
    left_out = {path for path in tracked() if path.suffix == ".cpp"} - ours
    assert {path.name for path in left_out} <= {"no_cuda.cpp"} | {path.name for path in left_out if "tests/fuzz/fuzz_" in str(path)}, left_out


def test_features_are_summed_up(tmp_path: Path) -> None:
    done = configure(ROOT, tmp_path, "-DKDTREE_WITH_CUDA=OFF", "-DKDTREE_WITH_TORCH=OFF", "-DKDTREE_WITH_TESTS=OFF",
                     f"-DKDTREE_PYTHON={sys.executable}")
    assert done.returncode == 0, done.stderr
    summary = done.stdout.split("features have been disabled:")[1]
    for feature in ("cuda", "torch", "tests", "sanitize"):
        assert f" * {feature}, " in summary


def test_nvcc_is_taken_from_the_first_place_that_has_one(tmp_path: Path, engine: Path) -> None:
    """The configuration, CUDA_HOME, PATH, then the engine's Python."""
    given, home, path = (fake_nvcc(tmp_path / name, version) for name, version in (("a", "13.1"), ("b", "13.2"), ("c", "13.3")))
    with_path = f"{path.parent}:{bare_path(tmp_path)}"
    environ = {"PATH": with_path, "CUDA_HOME": str(home.parents[1])}
    chosen = [kernel(tmp_path, "1", engine, f"-DKDTREE_CUDA_HOME={given.parents[1]}", **environ),
              kernel(tmp_path, "2", engine, **environ),
              kernel(tmp_path, "3", engine, PATH=with_path),
              kernel(tmp_path, "4", engine, PATH=with_path.partition(":")[2])]
    site = tmp_path / "engine"
    for done, (version, nvcc) in zip(chosen, [("13.1", given), ("13.2", home), ("13.3", path), ("13.4", site / "nvidia/cu13/bin/nvcc")]):
        assert f"-- nvcc {version}: {nvcc}" in done.stdout, done.stdout + done.stderr
        assert done.returncode == 0, done.stderr


def test_without_nvcc_it_says_what_to_give(tmp_path: Path, engine: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = kernel(tmp_path, "b", engine, f"-DKDTREE_CUDA_HOME={tmp_path / 'empty'}")
    said = " ".join(done.stderr.split())
    assert done.returncode != 0
    assert f"no nvcc in {tmp_path / 'empty'}/bin. Give -DKDTREE_CUDA_HOME=<folder>, or build the CPU op only" in said


def test_an_nvcc_that_is_too_old_is_said(tmp_path: Path, engine: Path) -> None:
    old = fake_nvcc(tmp_path / "old", "12.4")
    done = kernel(tmp_path, "b", engine, f"-DKDTREE_CUDA_HOME={old.parents[1]}")
    assert done.returncode != 0 and f"{old} is version '12.4', 12.8 or newer is needed" in " ".join(done.stderr.split())


@pytest.mark.parametrize("options, said", [
    ((), "the torch op needs -DKDTREE_PYTHON=<the engine's python3>"),
    (("-DKDTREE_PYTHON=/nowhere/python3",), "KDTREE_PYTHON=/nowhere/python3 can't be run"),
    (("-DKDTREE_PYTHON=/usr/bin/python3",), "/usr/bin/python3 has no torch with a stable ABI (torch 2.10 or newer)")])
def test_a_python_without_torch_is_said(tmp_path: Path, options: tuple[str, ...], said: str) -> None:
    done = configure(ROOT / "kernel", tmp_path, "-DKDTREE_WITH_CUDA=OFF", *options)
    assert done.returncode != 0 and said in " ".join(done.stderr.split())
