# SPDX-License-Identifier: Apache-2.0
"""Rules about the kernel's sources: who may include what, what is never called, and the spill check itself."""

import re
import sys
from pathlib import Path

KERNEL = Path(__file__).resolve().parents[2] / "kernel"
sys.path.insert(0, str(KERNEL / "tools"))
import check_ptxas  # noqa: E402

TORCH = re.compile(r'#\s*include\s*[<"](torch|ATen|c10)/|\bat::|\bc10::')
PRINTS = re.compile(r"\b(printf|std::cout|std::cerr|exit|abort)\b")


def sources(*folders: str) -> list[Path]:
    """C, C++ and CUDA files of the folders."""
    found = [path for folder in folders for path in (KERNEL / folder).rglob("*")
             if path.suffix in (".h", ".cpp", ".cu", ".cuh")]
    assert found
    return found


def test_only_the_torch_folder_knows_torch() -> None:
    assert TORCH.search("#include <torch/csrc/stable/library.h>")
    for path in sources("include", "src"):
        assert not TORCH.search(path.read_text()), path


def test_libraries_do_not_print_or_exit() -> None:
    for path in sources("include", "src", "torch"):
        assert not PRINTS.search(path.read_text()), path


def test_public_headers_are_c() -> None:
    for path in sources("include"):
        outside_cpp = re.sub(r"#ifdef __cplusplus.*?#endif", "", path.read_text(), flags=re.S)
        assert not re.search(r"\b(namespace|template|class|std::)\b", outside_cpp), path


def fields(text: str) -> list[tuple[str, bool, str]]:
    """(name, whether it is a pointer, its comment) of each member of the structs in a C header."""
    found = []
    for body in re.findall(r"^struct \w+ \{\n(.*?)^\};", text, re.S | re.M):
        for declared, comment in re.findall(r"([^;{}/]+);[ \t]*(?:/\*(.*?)\*/)?", body, re.S):
            words = declared.split()
            name = re.sub(r"\W.*", "", words[-1].lstrip("*"))
            found.append((name, "*" in declared, " ".join(comment.split())))
    return found


def test_every_field_of_the_params_says_what_it_is() -> None:
    """Memory its shape or what it holds; a stride or a size stands beside the memory that it is of."""
    text = (KERNEL / "include/kdtree/verify_attn.h").read_text()
    found = fields(text)
    assert len(found) > 30 and ("mask", True) in [field[:2] for field in found]
    for name, pointer, comment in found:
        assert comment or name.endswith(("_stride", "workspace_bytes")), name
        assert not pointer or re.search(r"\[.+\]|as out|one enum|aligned", comment), name
    nullable = {name for name, pointer, comment in found if pointer and re.search("null", comment, re.I)}
    assert nullable == {"k_draft", "out_scratch", "kv_indices", "out_cache_loc", "mask", "mask_indptr", "enable", "workspace"}
    assert "Strides count elements" in text


REPORT = """ptxas info    : Compiling entry function '_Z5split' for 'sm_90'
ptxas info    : Function properties for _Z5split
    {stack} bytes stack frame, {spill} bytes spill stores, {spill} bytes spill loads
ptxas info    : Used 254 registers, used 1 barriers, {shared} bytes smem
"""


def test_spill_check_sees_spills_shared_memory_and_missing_architectures() -> None:
    good = REPORT.format(stack=0, spill=0, shared=4608)
    assert check_ptxas.problems(good, ["sm_90"]) == []
    assert check_ptxas.problems(good, ["sm_90", "sm_120"]) == ["no kernel was compiled for sm_120"]
    assert "4 bytes of spills" in check_ptxas.problems(REPORT.format(stack=8, spill=2, shared=0), ["sm_90"])[0]
    assert "101377 bytes of shared memory" in check_ptxas.problems(REPORT.format(stack=0, spill=0, shared=101377), ["sm_90"])[0]
    assert "said nothing" in check_ptxas.problems(good.splitlines()[0], ["sm_90"])[0]
