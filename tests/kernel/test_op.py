# SPDX-License-Identifier: Apache-2.0
"""The ops as torch sees them: schema, fakes, messages."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from kdtree_kernel.selftest import Case, make_inputs

from scenes import SCALE

CASE = Case("op", torch.bfloat16, [20, 4], 3)


def arguments(device: str) -> dict[str, Any]:
    """Keyword arguments of a good call."""
    i = make_inputs(CASE, device, 1)
    size = max(1, torch.ops.kdtree.verify_attn_workspace_bytes(2, 3, 8, i["q"]))
    names = ("q", "k_draft", "kv_pool", "qo_indptr", "kv_indptr", "kv_indices", "custom_mask", "mask_indptr")
    return {name: i[name] for name in names} | {
        "out": torch.zeros(6, 8, 512, dtype=torch.bfloat16, device=device), "out_cache_loc": None,
        "workspace": torch.zeros(size, dtype=torch.uint8, device=device), "draft_tokens": 3, "sm_scale": SCALE}


def test_architecture_shows_every_op_as_it_is(library: str) -> None:
    """Names, order, what may be None and defaults, against the schemas that torch has."""
    text = (Path(__file__).resolve().parents[2] / "ARCHITECTURE.md").read_text()
    shown = {name: [argument.strip() for argument in arguments.split(",")]
             for name, arguments in re.findall(r"^    torch\.ops\.kdtree\.(\w+)\(([^)]*)\) ->", text, re.M)}
    registered = {schema.name.removeprefix("kdtree::"): schema for schema in torch._C._jit_get_all_schemas() if schema.name.startswith("kdtree::")}
    assert shown.keys() == registered.keys()
    for name, schema in registered.items():
        built = []
        for argument in schema.arguments:
            optional = "?" if str(argument.type).startswith("Optional") else ""
            default = f"={argument.default_value:g}" if argument.has_default_value() and argument.default_value is not None else ""
            built.append(argument.name + optional + default)
        assert shown[name] == built, name


def test_opcheck_verify_attn(device: str) -> None:
    torch.library.opcheck(torch.ops.kdtree.verify_attn.default, (), arguments(device),
                          test_utils=("test_schema", "test_faketensor"))


def test_opcheck_gate_and_compare(device: str) -> None:
    qo, kv = torch.tensor([0, 3, 6], device=device), torch.tensor([0, 20, 24], dtype=torch.int32, device=device)
    word = torch.zeros(64, dtype=torch.uint8, device=device)
    flags = torch.zeros(8, dtype=torch.int32, device=device)
    utils = ("test_schema", "test_faketensor")
    torch.library.opcheck(torch.ops.kdtree.gate.default, (word, qo, kv, qo.clone(), kv.clone(), flags), test_utils=utils)
    ours = torch.ones(6, 8, 512, dtype=torch.bfloat16, device=device)
    accum = torch.zeros(4232, dtype=torch.uint8, device=device)
    workspace = torch.zeros(4096, dtype=torch.uint8, device=device)
    torch.library.opcheck(torch.ops.kdtree.compare.default, (ours, ours + 1, kv, 3, accum, workspace), test_utils=utils)
    torch.library.opcheck(torch.ops.kdtree.tick.default, (word, qo), test_utils=utils)


def test_opcheck_observers(device: str) -> None:
    utils, shape = ("test_schema", "test_faketensor"), (2, 16, 4)
    kv, slots = torch.tensor([0, 3, 9], dtype=torch.int32, device=device), torch.arange(9, device=device)
    torch.library.opcheck(torch.ops.kdtree.slots.default, (kv, slots, torch.zeros(64, dtype=torch.uint8, device=device)),
                          test_utils=utils)
    table = torch.zeros(torch.ops.kdtree.moe_table_bytes(*shape, kv), dtype=torch.uint8, device=device)
    torch.library.opcheck(torch.ops.kdtree.moe_begin.default, (table, *shape, 3), test_utils=utils)
    ids = torch.zeros(3, 4, dtype=torch.int32, device=device)
    torch.library.opcheck(torch.ops.kdtree.moe_count.default, (table, *shape, 1, ids), test_utils=utils)
    torch.library.opcheck(torch.ops.kdtree.moe_end.default, (table, *shape, table.clone(), 0, 1), test_utils=utils)


@pytest.mark.parametrize("change, message", [
    ({"ranks": 3}, "layers, experts, ranks must be in 1..256, 1..1024, 0..256, ranks a divisor of experts, got 2, 16, 3"),
    ({"experts": 32}, "table must have at least 1016 bytes, got 632"),
    ({"layer": 2}, "layer must be a row of the table, got 2"),
    ({"ids": torch.zeros(4, dtype=torch.int32)}, "ids must be [tokens, k] with contiguous rows, got [4]"),
    ({"ids": torch.zeros(4, 2)}, "ids must be of type Int or Long, got Float"),
])
def test_messages_of_the_router_op(library: str, change: dict[str, Any], message: str) -> None:
    good = {"table": torch.zeros(632, dtype=torch.uint8), "layers": 2, "experts": 16, "ranks": 4, "layer": 1,
            "ids": torch.zeros(4, 2, dtype=torch.int32)}
    torch.ops.kdtree.moe_count(**good)
    with pytest.raises(RuntimeError) as caught:
        torch.ops.kdtree.moe_count(**(good | change))
    assert str(caught.value) == f"kdtree.moe_count: {message}"


BAD = [
    ("q", lambda a: a["q"][..., :512], "q must be [tokens, heads, 576], got [6, 8, 512]"),
    ("q", lambda a: a["q"].double(), "q must be of type"),
    ("out", lambda a: a["out"][:5], "out must be [tokens, heads, 512] for q's tokens and heads, got [5, 8, 512]"),
    ("out", lambda a: a["out"].float(), "out must be of type BFloat16, got Float"),
    ("k_draft", lambda a: a["k_draft"][:2], "k_draft must be [tokens, 576]"),
    ("k_draft", lambda a: None, "out_cache_loc must be given where k_draft is None"),
    ("kv_pool", lambda a: a["kv_pool"][..., :575], "kv_pool must be [slots, 576]"),
    ("qo_indptr", lambda a: a["qo_indptr"].float(), "qo_indptr must be of type Int or Long, got Float"),
    ("kv_indptr", lambda a: a["kv_indptr"].long(), "kv_indptr must be of type Int, got Long"),
    ("kv_indices", lambda a: a["kv_indices"][None], "kv_indices must have one dimension, got [1, 24]"),
    ("custom_mask", lambda a: a["custom_mask"].int(), "custom_mask must be of type Bool or Byte, got Int"),
    ("mask_indptr", lambda a: None, "mask_indptr must be given with custom_mask"),
    ("draft_tokens", lambda a: 129, "draft_tokens must be in 1..128, got 129"),
    ("draft_tokens", lambda a: 0, "draft_tokens must be in 1..128, got 0"),
]


@pytest.mark.parametrize("name, change, message", BAD, ids=[f"{i}-{b[0]}" for i, b in enumerate(BAD)])
def test_messages_name_argument_rule_and_value(device: str, name: str, change: Any, message: str) -> None:
    good = arguments(device)
    with pytest.raises(RuntimeError) as caught:
        torch.ops.kdtree.verify_attn(**(good | {name: change(good)}))
    text = str(caught.value)
    assert text.startswith("kdtree.verify_attn: ") and "\n" not in text
    assert message in text


def test_workspace_too_small(gpu: str) -> None:
    good = arguments(gpu)
    with pytest.raises(RuntimeError, match=r"kdtree.verify_attn: workspace must have at least \d+ bytes, got 16"):
        torch.ops.kdtree.verify_attn(**(good | {"workspace": good["workspace"][:16]}))


def test_tensor_on_the_wrong_device(gpu: str) -> None:
    good = arguments(gpu)
    with pytest.raises(RuntimeError, match="kv_indices must be on the device of the first argument, got the CPU"):
        torch.ops.kdtree.verify_attn(**(good | {"kv_indices": good["kv_indices"].cpu()}))


def test_second_library_is_refused(library: str) -> None:
    from kdtree_kernel.ops import load, loaded

    load(library)
    assert loaded() == library
    with pytest.raises(RuntimeError, match="is loaded already"):
        load("/somewhere/else.so")
