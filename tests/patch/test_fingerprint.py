# SPDX-License-Identifier: Apache-2.0
"""Which engine is known: from source files alone."""
import json
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from patch_rig import SITE, Rig, light_engine
from kdtree_patch import stats_format as f
from kdtree_patch import bind, contract, fingerprint, probe
from kdtree_patch.source import normalise

PACKAGE = Path(fingerprint.find_package())


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    """A copy of the files that are read at start, of the installed SGLang."""
    folder = tmp_path / "site" / "sglang"
    for name in {name for place in (*(item.place for item in fingerprint.ITEMS), contract.LAYER) for name in place}:
        if (PACKAGE / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(PACKAGE / name, folder / name)
    for name in ("_version.py", "__init__.py"):
        shutil.copy(PACKAGE / name, folder / name)
    return folder


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) >= 1, old
    path.write_text(text.replace(old, new, 1))


def test_the_locked_engine_is_known() -> None:
    found = fingerprint.examine(str(PACKAGE))
    assert (found.version, found.known, found.binds, found.differences) == ("0.5.17", True, True, [])
    assert {name for name, digest in found.items.items() if not digest} == {"TritonAttnBackend._forward_extend_kernel"}


def test_a_copy_is_the_same_engine(engine: Path) -> None:
    assert fingerprint.examine(str(engine)).fingerprint == fingerprint.examine(str(PACKAGE)).fingerprint


def test_comments_and_blank_lines_dont_matter_code_does(engine: Path) -> None:
    backend = engine / "srt/layers/attention/triton_backend.py"
    edit(backend, "        # Normal mode: use original 2-stage kernel\n", "\n        # another comment # with a hash\n\n")
    assert fingerprint.examine(str(engine)).known
    edit(backend, "k_descale = 1.0", "k_descale = 2.0")
    found = fingerprint.examine(str(engine))
    assert not found.known and found.binds
    assert found.differences == ["TritonAttnBackend.forward_extend differs (compared with sglang 0.5.17)"]


def test_what_is_not_touched_doesnt_matter(engine: Path) -> None:
    edit(engine / "srt/layers/attention/triton_backend.py", "    def forward_decode(", "    def forward_decode_renamed(")
    assert fingerprint.examine(str(engine)).known


def test_a_signature_that_kdtree_cant_bind_to(engine: Path) -> None:
    edit(engine / "kernels/ops/attention/extend_attention.py", "    q_extend,\n    k_extend,", "    k_extend,\n    q_extend,")
    found = fingerprint.examine(str(engine))
    assert not found.known and not found.binds
    assert "extend_attention_fwd takes (k_extend, q_extend" in found.differences[0]


def test_a_missing_class_and_a_file_that_is_no_python(engine: Path) -> None:
    edit(engine / "srt/mem_cache/allocator/token.py", "class TokenToKVPoolAllocator", "class Renamed")
    (engine / "srt/layers/moe/topk.py").write_text("def (:\n")
    found = fingerprint.examine(str(engine))
    assert not found.binds
    assert "TokenToKVPoolAllocator.__init__ is not there" in found.differences
    assert "select_experts is missing (compared with sglang 0.5.17)" in found.differences


def test_normalise_keeps_strings_with_hashes() -> None:
    source = textwrap.dedent("""\
        def f(x):  # why

            # a comment
            return "# not a comment" + f"{x}#"   \n""")
    assert normalise(source) == 'def f(x):\n    return "# not a comment" + f"{x}#"'
    assert normalise(textwrap.indent(source, "    ")) == normalise(source)


STATE = """
import json, sys
from kdtree_patch.patch import PATCH
PATCH.start()
print(json.dumps([PATCH.state, PATCH.reason, sorted({m.split(".")[0] for m in sys.modules} & {"torch", "sglang"})]))
"""


def test_an_unknown_engine_is_refused_with_the_difference_until_it_is_accepted(rig: Rig, engine: Path) -> None:
    edit(engine / "srt/layers/attention/triton_backend.py", "k_descale = 1.0", "k_descale = 2.0")
    found = fingerprint.examine(str(engine))
    state, reason, imported = rig.json(STATE, path=str(engine.parent))
    assert (state, imported) == (f.REFUSED, [])
    assert reason == (f"unknown engine 0.5.17, fingerprint {found.fingerprint[:16]}: TritonAttnBackend.forward_extend "
                      "differs (compared with sglang 0.5.17)")
    assert rig.json(STATE, path=str(engine.parent), KDTREE_ACCEPT_ENGINE="0" * 64)[0] == f.REFUSED
    assert rig.json(STATE, path=str(engine.parent), KDTREE_ACCEPT_ENGINE=found.fingerprint)[0] == f.PASSIVE


def test_an_engine_that_kdtree_cant_bind_to_is_refused_even_if_accepted(rig: Rig, engine: Path) -> None:
    edit(engine / "srt/layers/radix_attention.py", "self.tp_k_head_num", "self.number_of_k_heads")
    found = fingerprint.examine(str(engine))
    state, reason, _ = rig.json(STATE, path=str(engine.parent), KDTREE_ACCEPT_ENGINE=found.fingerprint)
    assert state == f.REFUSED
    assert reason == "engine 0.5.17 can't be patched: layer.tp_k_head_num is not there (RadixAttention)"


def test_starting_reads_no_file_that_binding_does_not_need(engine: Path) -> None:
    """Each rank parses them: what kdtree does without is looked for by the contract tests alone."""
    assert bind.missing(fingerprint.Source(str(engine))) == []
    assert not (engine / "srt/distributed/parallel_state.py").exists()


def test_the_light_engine_is_unknown_and_binds() -> None:
    found = light_engine()
    assert (found.version, found.known, found.binds) == ("0.5.17+light", False, True)
    assert found.differences and all(line.endswith("(compared with sglang 0.5.17)") for line in found.differences)


def test_probe_answers_without_importing_the_engine(rig: Rig) -> None:
    code = """
import contextlib, io, json, sys
from kdtree_patch import probe
sys.argv = ["probe", "--json"]
out = io.StringIO()
with contextlib.redirect_stdout(out):
    status = probe.main()
facts = json.loads(out.getvalue())
print(json.dumps([status, facts, sorted({m.split(".")[0] for m in sys.modules} & {"torch", "sglang", "triton", "numpy"})]))
"""
    status, facts, imported = rig.json(code, KDTREE_VERIFY=None)
    assert (status, imported) == (0, [])
    assert set(facts) == {"engine", "version", "fingerprint", "known", "binds", "differences", "items", "torch", "python",
                          "site"}
    assert (facts["engine"], facts["version"], facts["known"], facts["binds"]) == ("sglang", "0.5.17", True, True)
    assert facts["torch"].startswith("2.11.0") and facts["site"] == str(PACKAGE.parent)


def test_probe_without_an_engine(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-S", "-m", "kdtree_patch.probe", "--json"], cwd=SITE, text=True,
                          capture_output=True, check=False)
    facts = json.loads(done.stdout)
    assert (done.returncode, facts["engine"], facts["known"], facts["torch"]) == (0, "", False, "")
    done = subprocess.run([sys.executable, "-S", "-m", "kdtree_patch.probe", "--nonsense"], cwd=SITE, text=True,
                          capture_output=True, check=False)
    assert done.returncode == 2 and done.stdout == ""


def test_torch_version_is_read_from_its_file() -> None:
    import importlib.metadata
    assert probe.torch_version().split("+")[0] == importlib.metadata.version("torch").split("+")[0]
