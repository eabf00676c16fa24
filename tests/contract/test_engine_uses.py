# SPDX-License-Identifier: Apache-2.0
"""kdtree_patch/contract.py is complete: every name of SGLang that the patch uses is in its table, and nothing else is."""

from __future__ import annotations

import sys

import pytest

from contract_files import ROOT
from engine_uses import find_uses, patch_sources

sys.path.insert(0, str(ROOT / "sitecustomize"))
from kdtree_patch import TARGETS, contract  # noqa: E402

PACKAGE = ROOT / "sitecustomize" / "kdtree_patch"
# Names that are computed: from tables of contract.py (rank.py), or not of the engine at all.
COMPUTED = {
    "rank.py": {"getattr(source, name)", "getattr(ranks, name)", "setattr(ranks, name, _number(source, name))",
                "_number(source, name)", "getattr(ranks, prefix + '_rank')", "_number(state, rank)", "_number(state, size)",
                "setattr(ranks, prefix + '_rank', _number(state, rank))",
                "setattr(ranks, prefix + '_size', _number(state, size))"},
    "patch.py": {"setattr(self.ranks, name, value)"},
    "hook.py": {"getattr(self._loader, name)"},
}


def table_names() -> dict[str, object]:
    """Name -> the entry that it comes from."""
    names: dict[str, object] = {}
    for entry in contract.TABLE:
        if isinstance(entry, contract.Function):
            names.update(dict.fromkeys((*entry.name.split("."), *entry.leading, *entry.named), entry))
        elif isinstance(entry, contract.Attributes):
            names.update(dict.fromkeys((*entry.names, *(name for _, name in entry.classes)), entry))
        elif isinstance(entry, contract.Value):
            names.update(dict.fromkeys(entry.name.split("."), entry))
    return names | dict.fromkeys(contract.KERNEL_KNOWN)


def modules() -> set[str]:
    """The table's files, as the modules that Python makes of them."""
    places = [entry.place for entry in contract.TABLE if not isinstance(entry, contract.Attributes)]
    places += [place for entry in contract.TABLE if isinstance(entry, contract.Attributes) for place, _ in entry.classes]
    files = {file.removesuffix(".py").removesuffix("/__init__") for place in places for file in place}
    return {"sglang." + file.replace("/", ".") for file in files}


def unlisted(sources: dict[str, str]) -> list[str]:
    uses, _ = find_uses(sources)
    known = set(table_names()) | modules()
    return [f"{use.where}: {use.name}" for use in uses if use.name not in known]


def test_every_name_of_sglang_that_the_patch_uses_is_in_the_table() -> None:
    assert not unlisted(patch_sources(PACKAGE)), (
        "add them to kdtree_patch/contract.py, so that every engine is checked for them "
        "(a tensor's or Python's own go to the lists of engine_uses.py)")


def test_names_that_are_computed_come_from_the_table() -> None:
    _, blind = find_uses(patch_sources(PACKAGE))
    new = [line for line in blind if line.split(": ", 1)[1] not in COMPUTED.get(line.split(":")[0], set())]
    assert not new, "a name that this test can't read off: take it from contract.py and list the expression here"
    rank = (PACKAGE / "rank.py").read_text()
    assert "in RANKS" in rank and "in GROUP_RANKS.items()" in rank


def test_nothing_in_the_table_is_unused() -> None:
    """But functions that are there for their source alone."""
    used = {use.name for use in find_uses(patch_sources(PACKAGE))[0]} | set(contract.RANKS)
    used |= {name for names in contract.GROUP_RANKS.values() for name in names} | {"device"}
    for entry in contract.TABLE:
        if isinstance(entry, contract.Attributes):
            assert set(entry.names) <= used, entry
        elif isinstance(entry, contract.Function) and not entry.pinned:
            assert set(entry.name.split(".")) & used, entry


def test_the_modules_that_are_watched_are_the_tables() -> None:
    assert set(TARGETS) <= modules()


@pytest.mark.parametrize("planted, name", [
    ("def see(layer: object) -> None:\n    return layer.brand_new", "brand_new"),
    ("def see(layer: object) -> None:\n    return getattr(layer, 'brand_new', None)", "brand_new"),
    ("def see(layer):\n    inner = layer.attn_type\n    return inner.brand_new", "brand_new"),
    ("class Call:\n    def __init__(self, batch: object):\n        self._batch = batch\n"
     "    def go(self) -> None:\n        return self._batch.brand_new", "brand_new"),
    ("import sys\ndef see() -> None:\n    return getattr(sys.modules.get('x'), 'brand_new')", "brand_new"),
    ("NAME = 'brand_new'\ndef see(layer: object) -> None:\n    setattr(layer, NAME, 1)", "brand_new"),
    ("def see(bound: dict[str, object]) -> None:\n    return bound['brand_new']", "brand_new"),
    ("def see(cls: object) -> None:\n    return cls.__dict__['brand_new']", "brand_new"),
    ("import functools\ndef wrap(f):\n    @functools.wraps(f)\n    def inner(self, brand_new): pass", "brand_new"),
    ("def wrap(original: Callable) -> None:\n    result = original()\n    return result.brand_new", "brand_new"),
    ("X = 'sglang.srt.brand_new'", "sglang.srt.brand_new"),
])
def test_a_use_of_each_kind_is_found(planted: str, name: str) -> None:
    found = unlisted({**patch_sources(PACKAGE), "planted.py": planted})
    assert len(found) == 1 and found[0].startswith("planted.py:") and found[0].endswith(f": {name}")


def test_a_computed_name_is_found() -> None:
    _, blind = find_uses({"planted.py": "def see(layer: object, name: str) -> None:\n    return getattr(layer, name)"})
    assert blind == ["planted.py:2: getattr(layer, name)"]
