# SPDX-License-Identifier: Apache-2.0
"""A short run of each fuzzer, the same each time; and proof that the fuzzers can find something."""

from __future__ import annotations

import subprocess

import pytest

from fuzz import HERE, NAMES, PROGRAMS, fuzz


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_found_in_a_short_run(name):
    if not (PROGRAMS / f"fuzz_{name}").exists():
        pytest.skip("the fuzzers are not built: make build")
    done = fuzz(name, "-seed=1", "-runs=30000")
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.parametrize("name", NAMES)
def test_the_corpus_is_there_and_small(name):
    files = list((HERE / "corpus" / name).iterdir())
    assert files and sum(file.stat().st_size for file in files) < 400_000


def test_a_fuzzer_finds_a_planted_fault(tmp_path):
    """The drivers' own require(), compiled against an input that breaks it, ends with a report and not quietly."""
    source = tmp_path / "planted.cpp"
    source.write_text('#include <cstddef>\n#include "fuzz_input.h"\n'
                      'extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {\n'
                      '  fuzz::require(size < 3 || data[0] != 107 || data[1] != 100 || data[2] != 116, "planted");\n  return 0;\n}\n')
    program = tmp_path / "planted"
    built = subprocess.run(["clang++", "-std=c++20", "-fsanitize=fuzzer", f"-I{HERE}", f"-I{HERE.parents[1]}", str(source), "-o", str(program)],
                           capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    done = subprocess.run([program, "-seed=1", "-runs=2000000", f"-artifact_prefix={tmp_path}/"], capture_output=True, text=True, errors="replace")
    assert done.returncode != 0 and "broken: planted" in done.stderr
