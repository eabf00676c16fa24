# SPDX-License-Identifier: Apache-2.0
"""SGLang's releases against the table of what kdtree relies on: their own source, parsed, never imported."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from contract_files import ROOT
from engine_sources import INSTALLED, VERSIONS, copy, folder

from kdtree_patch import bind, contract, fingerprint
from kdtree_patch.source import Source

# What kdtree does without, by release: a thing that comes or goes is seen here first.
_OLD = {"backend.dcp_size", "backend.is_draft_runner", "TritonAttnBackend._forward_extend_kernel",
        "capture_routed_experts_if_allowed", "topk_config.allow_routed_experts_capture", "model_runner.ps"}
LACKS = {
    "0.5.11": {*_OLD, "get_parallel", "TritonAttnBackend._update_target_verify_buffers",
               "TritonAttnBackend._build_cuda_graph_forward_metadata"},
    "0.5.13": {*_OLD, "get_parallel"},
    "0.5.14": _OLD,
    "0.5.16": {"TritonAttnBackend._forward_extend_kernel"},
    "0.5.17": {"TritonAttnBackend._forward_extend_kernel"},
    "0.5.23": {"topk_config.num_fused_shared_experts", "forward_batch.num_token_non_padded_cpu", "model_runner.ps"},
}
KNOWN = [known["version"] for known in fingerprint.known_engines()]


def test_these_releases_are_looked_at() -> None:
    assert VERSIONS == list(LACKS), "the lock and this file name the same releases"
    assert set(KNOWN) <= set(VERSIONS), "a known engine is one whose source is looked at"


@pytest.mark.parametrize("version", VERSIONS)
def test_everything_that_kdtree_relies_on_is_there(version: str) -> None:
    source = Source(str(folder(version)))
    assert bind.missing(source) == []
    lacks = {lack.what.split(" is not there")[0] for lack in bind.unmet(source)}
    assert lacks == LACKS[version]


@pytest.mark.parametrize("version", VERSIONS)
def test_known_or_refused_with_the_difference(version: str) -> None:
    engine = fingerprint.examine(str(folder(version)))
    assert (engine.version, engine.binds, engine.known) == (version, True, version in KNOWN)
    if engine.known:
        assert engine.differences == []
    else:
        assert all(re.fullmatch(r"\S+ (differs|is new|is missing)(: takes .+)? \(compared with sglang \S+\)", line)
                   for line in engine.differences) and engine.differences


def test_every_recorded_fingerprint_is_that_of_its_items() -> None:
    for known in fingerprint.known_engines():
        assert known["fingerprint"] == fingerprint.fingerprint_of(known["items"]), known["version"]
        assert fingerprint.examine(str(folder(known["version"]))).items == known["items"]


def test_the_readme_names_the_known_releases_and_no_other() -> None:
    row = next(line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("| Engine |"))
    named = re.search(r"SGLang ([\d., and]+)", row)
    assert named and re.findall(r"\d+\.\d+\.\d+", named[1]) == KNOWN


def test_a_new_parameter_of_the_kernel_is_said(tmp_path: Path) -> None:
    package = copy(INSTALLED, tmp_path)
    path = next(package / file for file in contract.KERNEL if (package / file).exists())
    text = path.read_text()
    start = text.index("def extend_attention_fwd(")
    path.write_text(text[:start] + text[start:].replace("    aux_tensors=None,\n):", "    aux_tensors=None,\n    brand_new=7,\n):", 1))
    assert fingerprint.examine(str(package)).differences == [
        f"extend_attention_fwd differs: takes brand_new too (compared with sglang {INSTALLED})"]


def renamed(package: Path, files: set[str], name: str) -> None:
    for file in files:
        if (package / file).exists():
            path = package / file
            path.write_text(re.sub(rf"\b{name}\b", f"{name}_renamed", path.read_text()))


def files_of(entry: object) -> set[str]:
    places = [place for place, _ in entry.classes] if isinstance(entry, contract.Attributes) else [entry.place]
    return {file for place in places for file in place}


NAMED = [(entry, name) for entry in contract.TABLE if isinstance(entry, (contract.Function, contract.Attributes))
         for name in (entry.names if isinstance(entry, contract.Attributes) else
                      [entry.name.split(".")[-1], *(n for n in entry.leading + entry.named if n != "self")])
         if not re.fullmatch(r"__\w+__", name)]


@pytest.mark.parametrize("entry, name", NAMED, ids=[
    f"{getattr(entry, 'of', getattr(entry, 'name', ''))}-{name}" for entry, name in NAMED])
def test_each_name_that_goes_is_missed(entry: object, name: str, tmp_path: Path) -> None:
    """Renamed in the release that has the most of them; what is not there in it is missed already."""
    package = copy(INSTALLED, tmp_path)
    before = bind.unmet(Source(str(package)), (entry,))
    renamed(package, files_of(entry), name)
    after = bind.unmet(Source(str(package)), (entry,))
    assert len(after) > len(before) or any(name in lack.what for lack in before)


@pytest.mark.parametrize("old, new, said", [
    ("            self.forward_metadata.custom_mask,\n            causal,\n            self.forward_metadata.mask_indptr,",
     "            None,\n            causal,\n            self.forward_metadata.mask_indptr,",
     "gives extend_attention_fwd None as custom_mask, expected forward_metadata.custom_mask"),
    ("        self.extend_attention_fwd(\n            q.view(", "        self.other_attention_fwd(\n            q.view(",
     "does not call extend_attention_fwd"),
    ("        self.extend_attention_fwd(\n            q.view(-1, layer.tp_q_head_num, layer.qk_head_dim),\n            k.contiguous(),",
     "        self.extend_attention_fwd(\n            k.contiguous(),\n            q.view(-1, layer.tp_q_head_num, layer.qk_head_dim),",
     "as q_extend, expected q"),
])
def test_a_call_that_means_something_else_is_no_engine_of_ours(old: str, new: str, said: str, tmp_path: Path) -> None:
    package = copy(INSTALLED, tmp_path)
    path = package / contract.BACKEND[0]
    text = path.read_text()
    start = text.index("    def forward_extend(")
    assert text.count(old, start) >= 1
    path.write_text(text[:start] + text[start:].replace(old, new))
    engine = fingerprint.examine(str(package))
    assert not engine.binds and not engine.known
    assert any(said in line for line in engine.differences), engine.differences


def test_a_call_through_a_helper_is_followed(tmp_path: Path) -> None:
    """0.5.23 calls the kernel through a method that passes its arguments on."""
    package = copy("0.5.23", tmp_path)
    path = package / contract.BACKEND[0]
    path.write_text(path.read_text().replace("self._forward_extend_kernel(\n            layer,", "self._forward_extend_kernel("))
    assert any("as q_extend" in line for line in fingerprint.examine(str(package)).differences)


def test_a_constant_with_another_value(tmp_path: Path) -> None:
    package = copy(INSTALLED, tmp_path)
    path = package / contract.LAYER[0]
    path.write_text(path.read_text().replace('DECODER = "decoder"', 'DECODER = "causal"'))
    assert "AttentionType.DECODER is 'causal', expected 'decoder'" in fingerprint.examine(str(package)).differences


def test_an_engine_that_lacks_something_is_never_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if its pinned functions are those of a known one: the layer is not among them."""
    package = copy(INSTALLED, tmp_path)
    path = package / contract.LAYER[0]
    path.write_text(path.read_text().replace("self.qk_head_dim", "self.head_dim_of_qk"))
    engine = fingerprint.examine(str(package))
    assert engine.fingerprint in {known["fingerprint"] for known in fingerprint.known_engines()}
    assert not engine.known and engine.differences == ["layer.qk_head_dim is not there (RadixAttention)"]


def test_engines_json_is_what_add_engine_writes() -> None:
    text = (ROOT / "sitecustomize" / "kdtree_patch" / "engines.json").read_text()
    assert text == json.dumps(json.loads(text), indent=1, sort_keys=True) + "\n"
