# SPDX-License-Identifier: Apache-2.0
"""The light engine looks to the patch as SGLang does: signatures on disk, and calls while it runs."""
import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from engine_process import HERE, LIGHT_PYTHON, REPOSITORY, probe

LIGHT = HERE / "light" / "lib" / "python3.11" / "site-packages" / "sglang"
TOUCHED = [
    ("srt/layers/attention/triton_backend.py", "TritonAttnBackend.__init__"),
    ("srt/layers/attention/triton_backend.py", "TritonAttnBackend.forward_extend"),
    ("srt/layers/attention/triton_backend.py", "TritonAttnBackend.init_forward_metadata"),
    ("srt/layers/attention/triton_backend.py", "TritonAttnBackend._set_kv_buffer"),
    ("kernels/ops/attention/extend_attention.py", "extend_attention_fwd"),
    ("srt/mem_cache/allocator/token.py", "TokenToKVPoolAllocator.__init__"),
    ("srt/mem_cache/allocator/token.py", "TokenToKVPoolAllocator.alloc"),
    ("srt/mem_cache/allocator/token.py", "TokenToKVPoolAllocator.free"),
    ("srt/mem_cache/allocator/base.py", "BaseTokenToKVPoolAllocator.merge_and_sort_free"),
    ("srt/mem_cache/memory_pool.py", "MLATokenToKVPool.set_kv_buffer"),
    ("srt/mem_cache/memory_pool.py", "MLATokenToKVPool.get_key_buffer"),
    ("srt/layers/radix_attention.py", "RadixAttention.__init__"),
    ("srt/model_executor/model_runner.py", "ModelRunner.forward"),
    ("srt/layers/moe/topk.py", "select_experts"),
    ("srt/layers/moe/topk.py", "capture_routed_experts_if_allowed"),
]


@pytest.fixture(scope="module")
def real() -> Path:
    """SGLang's package folder, found without importing it."""
    facts = probe(sys.executable)
    if facts["engine"] != "sglang":
        pytest.skip("SGLang is not in this Python; run the tests with the engine's")
    return Path(facts["site"]) / "sglang"


def parameters(path: Path, qualified: str) -> list[tuple[str, str]]:
    """(name, default) of each parameter, from the source."""
    node: ast.AST = ast.parse(path.read_text())
    for part in qualified.split("."):
        node = next(n for n in node.body if getattr(n, "name", None) == part)
    given = node.args
    names = given.posonlyargs + given.args
    defaults = [""] * (len(names) - len(given.defaults)) + [ast.unparse(d) for d in given.defaults]
    listed = list(zip([n.arg for n in names], defaults))
    return listed + [(n.arg, ast.unparse(d) if d else "") for n, d in zip(given.kwonlyargs, given.kw_defaults)]


@pytest.mark.parametrize("file, qualified", TOUCHED, ids=[q for _, q in TOUCHED])
def test_signatures_are_sglangs(real, file, qualified):
    assert parameters(LIGHT / file, qualified) == parameters(real / file, qualified)


def test_the_forward_metadata_has_the_same_fields(real):
    def fields(path):
        tree = ast.parse((path / "srt/layers/attention/triton_backend.py").read_text())
        found = next(n for n in tree.body if getattr(n, "name", None) == "ForwardMetadata")
        return [n.target.id for n in found.body if isinstance(n, ast.AnnAssign)]

    assert fields(LIGHT) == fields(real)


def test_the_patch_binds_to_both_and_knows_one(real):
    light, heavy = probe(str(LIGHT_PYTHON)), probe(sys.executable)
    assert light["binds"] and heavy["binds"]
    assert heavy["known"] and not light["known"]  # a stand-in must never pass for an engine that was examined
    assert light["version"].endswith("+light") and light["torch"].endswith("+light")


def test_the_stand_in_ops_have_the_schema_of_the_real_ones():
    source = (REPOSITORY / "kernel" / "torch" / "ops.cpp").read_text()
    stand_in = ast.parse((HERE / "light/kernel/python/kdtree_kernel/stand_in.py").read_text())
    functions = {n.name: n.args for n in stand_in.body if isinstance(n, ast.FunctionDef)}
    schemas = ["".join(re.findall(r'"([^"]*)"', found)) for found in re.findall(r"m\.def\(\s*((?:\"[^\"]*\"\s*)+)", source)]
    assert len(schemas) >= 5
    for schema in schemas:
        name, arguments = re.fullmatch(r"(\w+)\((.*)\) -> .*", schema).groups()
        wanted = [(a.split()[-1].split("=")[0], a.split("=")[1] if "=" in a else None) for a in arguments.split(", ")]
        given = functions[name].args
        defaults = [None] * (len(given) - len(functions[name].defaults)) + functions[name].defaults
        assert [a.arg for a in given] == [n for n, _ in wanted], name
        assert [d and ast.literal_eval(d) for d in defaults] == [d and ast.literal_eval(d) for _, d in wanted], name


def test_the_stand_in_kernel_project_takes_the_same_options():
    def options(path):
        return set(re.findall(r"^ *(?:option|set)\((KDTREE_(?:PYTHON|WITH_\w+|CUDA_\w+))", path.read_text(), re.MULTILINE))

    real = options(REPOSITORY / "kernel" / "CMakeLists.txt")
    assert "KDTREE_PYTHON" in real and real <= options(HERE / "light" / "kernel" / "CMakeLists.txt")


def trace(python: str, flavour: str) -> list[dict]:
    done = subprocess.run([python, str(HERE / "contract_trace.py"), flavour], capture_output=True, text=True,
                          env={k: v for k, v in os.environ.items() if not k.startswith(("KDTREE_", "PYTHON"))})
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_calls_look_the_same(real):
    light, heavy = trace(str(LIGHT_PYTHON), "light"), trace(sys.executable, "heavy")
    assert [c["call"] for c in light] == [c["call"] for c in heavy]
    step = ["forward_extend", "set_kv_buffer", "extend_attention_fwd"]
    assert [c["call"] for c in light if c["call"] in step] == step * 8  # 2 layers, 2 prefills, 2 verify steps
    for ours, theirs in zip(light, heavy):
        for call in (ours, theirs):  # the pools have sizes of their own
            for name in ("k_buffer", "v_buffer"):
                if name in call.get("arguments", {}):
                    call["arguments"][name]["shape"][0] = "slots"
        assert ours == theirs
