# SPDX-License-Identifier: Apache-2.0
"""Faults that are chosen while graphs replay: what each changes, and that they reach kdtree's own calls."""
import inspect
import struct
import sys
from types import SimpleNamespace

import pytest
import torch
from kdtree_test_hooks import faults
from live_engine import proofs
from live_engine.release import REPOSITORY

N, HEADS, LONG = 3, 4, 5000


def made_fault(number: int) -> faults._Faults:
    made = faults._Faults()
    made.code(torch.device("cpu"))
    made.choose(number)
    return made


def call(first_prefix: int) -> dict[str, object]:
    starts = torch.tensor([0, first_prefix, first_prefix + 10], dtype=torch.int32)
    sizes = [N * (first_prefix + N), N * (10 + N)]
    return {"q_extend": torch.zeros(2 * N, HEADS, 576), "kv_indptr": starts, "max_len_extend": N,
            "custom_mask": torch.ones(sum(sizes), dtype=torch.bool),
            "mask_indptr": torch.tensor([0, sizes[0], sum(sizes)])}


@pytest.mark.parametrize("number, prefix, ulps", [(1, LONG, 8), (1, 4096, 0), (0, LONG, 0), (2, LONG, 0)])
def test_eight_ulp_touches_one_head_of_one_request_behind_long_prefixes(number, prefix, ulps):
    right = torch.randn(2 * N, HEADS, 512).bfloat16()
    ours = right.clone()
    made_fault(number).change_output(ours, call(prefix))
    unit = torch.exp2(torch.floor(torch.log2(right[:N, faults.HEAD].float().abs().amax(-1))) - 7)
    changed = ours.float() - right.float()
    assert torch.equal(changed[:N, faults.HEAD, 0] / unit, torch.full((N,), float(ulps))) or ulps and (
        (changed[:N, faults.HEAD, 0] / unit - ulps).abs() <= 0.5).all()
    changed[:N, faults.HEAD, 0] = 0
    assert not changed.any()


def test_each_input_fault_changes_its_own_argument_alone():
    bound = call(LONG)
    seen = {number: made_fault(number).change_inputs(bound) for number in range(5)}
    for number, name in ((2, "custom_mask"), (3, "mask_indptr"), (4, "kv_indptr")):
        for other, changed in seen.items():
            assert torch.equal(changed[name].to(bound[name].dtype), bound[name]) == (other != number), (number, other)
    assert not seen[2]["custom_mask"].any() and not seen[3]["mask_indptr"].any()
    assert seen[4]["kv_indptr"].tolist() == [0, 1, 2]


def test_what_was_worst_is_forgotten_and_nothing_else():
    from kdtree_patch.compare import Accumulator, decode

    made = faults._Faults()
    made.accumulator = Accumulator()
    memory = made.accumulator.make(False)
    struct.pack_into("<QQQQdddq", memory.numpy(), 0, 2, 7, 3, 0, 5.0, 199.0, 1.5, 5000)
    struct.pack_into("<d", memory.numpy(), 88, 9.0)
    made.forget_worst()
    values, _ = decode(bytes(memory.numpy()))
    assert (values["max_abs"], values["max_ulp"], values["max_mean_ulp"]) == (0, 0, 0)
    assert (values["compares"], values["mismatches"], values["sum_mean_ulp"], values["longest_prefix"]) == (7, 3, 1.5, 5000)


def test_a_chain_has_no_mask_to_be_wrong():
    assert made_fault(2).change_inputs({**call(LONG), "custom_mask": None, "mask_indptr": None})["custom_mask"] is None


def test_they_wrap_what_kdtree_calls(monkeypatch):
    monkeypatch.syspath_prepend(str(REPOSITORY / "sitecustomize"))
    from kdtree_patch.graphs import Graphs
    from kdtree_patch.kernel import Kernel

    assert list(inspect.signature(Graphs.capture).parameters) == ["self", "call", "bound", "site"]
    assert list(inspect.signature(Kernel.verify).parameters)[:3] == ["self", "bound", "out"]
    assert list(inspect.signature(Kernel.compare).parameters)[:5] == ["self", "ours", "engines", "bound", "layer"]
    seen = []
    for owner, name in ((Graphs, "capture"), (Kernel, "verify"), (Kernel, "compare")):
        monkeypatch.setattr(owner, name, lambda self, *a, name=name: seen.append((name, a)))
    monkeypatch.setattr(faults, "FAULTS", made_fault(2))
    faults.install_faults()
    assert faults.FAULTS.layer == -1
    monkeypatch.setattr(faults.FAULTS, "layer", faults.LAYER)
    Kernel.verify(SimpleNamespace(), call(LONG), None)
    assert seen[-1][0] == "verify" and not seen[-1][1][0]["custom_mask"].any()
    monkeypatch.setattr(faults.FAULTS, "layer", faults.LAYER + 1)
    Kernel.verify(SimpleNamespace(), call(LONG), None)
    assert seen[-1][1][0]["custom_mask"].all()
    Graphs.capture(SimpleNamespace(), None, call(LONG), SimpleNamespace(layer=5))
    assert seen[-1][0] == "capture" and faults.FAULTS.layer == -1


def test_both_sides_name_the_same_faults():
    assert proofs.FAULTS == faults.NAMES and "torch" in sys.modules
