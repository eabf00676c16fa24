# SPDX-License-Identifier: Apache-2.0
"""The CUDA library's machine code, as cuobjdump shows it (a toolkit's, or the one that Triton brings)."""

import importlib.util
import re
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

ARCHS = ("sm_90", "sm_120")


def cuobjdump() -> str | None:
    triton = importlib.util.find_spec("triton")
    brought = Path(triton.origin).parent / "backends/nvidia/bin/cuobjdump" if triton and triton.origin else Path()
    return shutil.which("cuobjdump") or (str(brought) if brought.is_file() else None)


@pytest.fixture(scope="module")
def instructions(library: str) -> dict[tuple[str, str], list[str]]:
    """The opcodes of each kernel, by (architecture, mangled name)."""
    tool = cuobjdump()
    if tool is None:
        pytest.skip("no cuobjdump")
    done = subprocess.run([tool, "--dump-sass", Path(library).with_name("libkdtree.so")], capture_output=True, text=True, check=False)
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    arch = name = ""
    for line in done.stdout.splitlines():
        if match := re.match(r"arch = (\S+)", line):
            arch = match[1]
        elif match := re.match(r"\s*Function : (\S+)", line):
            name = match[1]
        elif match := re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?([A-Z][A-Z0-9_.]*)", line):
            found[arch, name].append(match[1])
    if not found:
        pytest.skip("the library was built without CUDA")
    return found


def splits(instructions: dict[tuple[str, str], list[str]], arch: str) -> dict[str, list[str]]:
    return {name: opcodes for (built_for, name), opcodes in instructions.items() if built_for == arch and "split_kernel" in name}


@pytest.mark.parametrize("arch", ARCHS)
def test_every_split_kernel_multiplies_on_the_matrix_units(instructions: dict, arch: str) -> None:
    found = splits(instructions, arch)
    assert len(found) == 20, "bf16 and fp16, plain and fp8 pools, one to five tiles of rows"
    for name, opcodes in found.items():
        assert any(opcode.startswith("HMMA") for opcode in opcodes), name


@pytest.mark.parametrize("arch", ARCHS)
def test_no_kernel_of_the_attention_touches_local_memory(instructions: dict, arch: str) -> None:
    """Spills as the machine has them; kernel.ptxas_no_spills asks ptxas."""
    kernels = {name: opcodes for (built_for, name), opcodes in instructions.items()
               if built_for == arch and ("split_kernel" in name or "combine_kernel" in name)}
    assert len(kernels) > len(splits(instructions, arch))
    for name, opcodes in kernels.items():
        assert not [opcode for opcode in opcodes if opcode.startswith(("LDL", "STL"))], name
