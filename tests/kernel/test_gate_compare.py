# SPDX-License-Identifier: Apache-2.0
"""gate and compare: the table of modes, and what an accumulator says."""

import math
from typing import Any

import pytest
import torch
from kdtree_kernel import COMPARE_ACCUM_BYTES, GATE_FLAGS, GATE_WORD_BYTES, ask_look, read_compare, read_gate, set_mode

KV = [0, 20, 24]


class Compared:
    """An accumulator in pinned (CPU: plain) host memory and the op over it."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.accum = torch.zeros(COMPARE_ACCUM_BYTES, dtype=torch.uint8, pin_memory=device == "cuda")
        self.kv = torch.tensor(KV, dtype=torch.int32, device=device)
        self.workspace = torch.zeros(1 << 16, dtype=torch.uint8, device=device)

    def add(self, ours: torch.Tensor, engines: torch.Tensor, layer: int = 0, **more: Any) -> dict[str, Any]:
        torch.ops.kdtree.compare(ours, engines, self.kv, layer, self.accum, self.workspace, **more)
        if self.device == "cuda":
            torch.cuda.synchronize()
        seen = read_compare(memoryview(self.accum.numpy()))
        assert seen is not None
        return seen


def outputs(device: str, dtype: torch.dtype = torch.bfloat16) -> tuple[torch.Tensor, torch.Tensor]:
    engines = torch.randn(6, 8, 512, generator=torch.Generator().manual_seed(1)).to(device, dtype)
    return engines.clone(), engines


@pytest.mark.parametrize("bits", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("mode, flags", [(0, [0, 0, 1, 0]), (1, [2, 1, 1, 1]), (2, [1, 0, 0, 2])])
def test_gate(device: str, mode: int, flags: list[int], bits: torch.dtype) -> None:
    word = torch.zeros(GATE_WORD_BYTES, dtype=torch.uint8, pin_memory=device == "cuda")
    qo, kv = torch.arange(0, 1001, 1, dtype=bits, device=device), torch.arange(5, 2007, 2, dtype=torch.int32, device=device)
    gated_qo, gated_kv = torch.full_like(qo, -1), torch.full_like(kv, -1)
    seen = torch.full((GATE_FLAGS,), 7, dtype=torch.int32, device=device)
    set_mode(memoryview(word.numpy()), mode)
    for _ in range(3):
        torch.ops.kdtree.gate(word, qo, kv, gated_qo, gated_kv, seen)
    assert seen.tolist() == flags + [0] * 4
    assert torch.equal(gated_qo, qo * flags[2]) and torch.equal(gated_kv, kv * flags[2])
    if device == "cuda":
        torch.cuda.synchronize()
    steps = [0, 0, 0]
    steps[mode] = 3
    assert read_gate(memoryview(word.numpy())) == {"mode": mode, "steps": steps, "ticks": 0}


def test_a_look_is_asked_of_one_step_each_time(device: str) -> None:
    word = torch.zeros(GATE_WORD_BYTES, dtype=torch.uint8, pin_memory=device == "cuda")
    qo, kv = torch.tensor([0, 9], device=device), torch.tensor([0, 5], dtype=torch.int32, device=device)
    flags, looks = torch.zeros(GATE_FLAGS, dtype=torch.int32, device=device), []
    for asked in (0, 1, 0, 0, 2, 0):
        for _ in range(asked):
            ask_look(memoryview(word.numpy()))
        torch.ops.kdtree.gate(word, qo, kv, torch.zeros_like(qo), torch.zeros_like(kv), flags)
        looks.append(flags[4].item())
    assert looks == [0, 1, 0, 0, 1, 0]


def test_a_tick_counts_and_does_nothing_else(device: str) -> None:
    word = torch.zeros(GATE_WORD_BYTES, dtype=torch.uint8, pin_memory=device == "cuda")
    set_mode(memoryview(word.numpy()), 2)
    for _ in range(3):
        torch.ops.kdtree.tick(word, torch.zeros(1, device=device))
    if device == "cuda":
        torch.cuda.synchronize()
    assert read_gate(memoryview(word.numpy())) == {"mode": 2, "steps": [0, 0, 0], "ticks": 3}


def test_gate_takes_an_unknown_mode_for_off(device: str) -> None:
    word = torch.zeros(GATE_WORD_BYTES, dtype=torch.uint8, pin_memory=device == "cuda")
    word[0] = 77
    qo, kv = torch.tensor([0, 9], device=device), torch.tensor([0, 5], dtype=torch.int32, device=device)
    seen = torch.full((GATE_FLAGS,), 7, dtype=torch.int32, device=device)
    torch.ops.kdtree.gate(word, qo, kv, torch.zeros_like(qo), torch.zeros_like(kv), seen)
    assert seen.tolist() == [0, 0, 1, 0] + [0] * 4
    with pytest.raises(ValueError, match="mode must be 0, 1 or 2, got 77"):
        set_mode(memoryview(word.numpy()), 77)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_equal_outputs_are_clean(device: str, dtype: torch.dtype) -> None:
    if device == "cuda" and dtype == torch.float32:
        pytest.skip("fp32 is for the CPU")
    seen = Compared(device).add(*outputs(device, dtype))
    assert (seen["compares"], seen["mismatches"], seen["max_abs"], seen["worst_layer"]) == (1, 0, 0.0, -1)
    assert seen["longest_prefix"] == 20 and seen["compares_by_batch"] == {2: 1}


def test_one_large_difference_is_a_mismatch_and_is_found(device: str) -> None:
    compared = Compared(device)
    ours, engines = outputs(device)
    compared.add(ours, engines, layer=3)
    engines[4, 5] = 0.5
    ours[4, 5] = 0.5
    ours[4, 5, 17] = 0.5 + 5 / 256  # 5 ULP of bf16 at 0.5
    seen = compared.add(ours, engines, layer=9)
    assert (seen["compares"], seen["mismatches"]) == (2, 1)
    assert seen["max_ulp"] == 5.0 and seen["max_abs"] == 5 / 256
    assert [seen[f"worst_{name}"] for name in ("layer", "request", "batch", "head", "prefix")] == [9, 1, 2, 5, 4]
    ours[0, 2, 0] += 1.0
    assert compared.add(ours, engines, layer=11)["worst_head"] == 2, "the worst so far is named"
    assert compared.add(*outputs(device), layer=12)["worst_layer"] == 11


@pytest.mark.parametrize("ulp, mismatches", [(4, 0), (5, 1)])
def test_tolerance_in_ulp(device: str, ulp: int, mismatches: int) -> None:
    ours, engines = outputs(device)
    engines[0, 0] = 1.0
    ours[0, 0] = 1.0
    ours[0, 0, 0] += ulp / 128
    assert Compared(device).add(ours, engines)["mismatches"] == mismatches
    assert Compared(device).add(ours, engines, max_ulp=ulp + 1.0)["mismatches"] == 0


def test_small_differences_everywhere_are_a_mismatch(device: str) -> None:
    ours, engines = outputs(device)
    engines.fill_(1.0)
    ours.fill_(1.0 + 1 / 128)
    seen = Compared(device).add(ours, engines)
    assert seen["max_ulp"] == 1.0 and seen["mismatches"] == 1
    assert (seen["sum_mean_ulp"], seen["max_mean_ulp"]) == (1.0, 1.0)


@pytest.mark.parametrize("size", [2.0**-40, 1.0, 2.0**20])
@pytest.mark.parametrize("part, mismatches", [(0.5, 0), (0.75, 1)])
def test_the_mean_is_of_a_request_and_in_ulp_of_its_rows(device: str, size: float, part: float, mismatches: int) -> None:
    """The second of two requests is one ULP off in a part of its elements; the first is exact."""
    ours, engines = outputs(device)
    engines.fill_(size)
    ours.fill_(size)
    ours[3:, :, : int(512 * part)] = size * (1 + 1 / 128)
    seen = Compared(device).add(ours, engines)
    assert (seen["max_mean_ulp"], seen["sum_mean_ulp"], seen["mismatches"]) == (part, part, mismatches)
    assert Compared(device).add(ours, engines, mean_ulp=0.8)["mismatches"] == 0


def test_elements_that_are_skipped_are_not_in_the_mean(device: str) -> None:
    ours, engines = outputs(device)
    engines.fill_(1.0)
    ours.fill_(1.0)
    ours[3:, :, :256] = 1 + 1 / 128
    engines[:3] = engines[3:, :, 256:] = float("nan")
    seen = Compared(device).add(ours, engines)
    assert (seen["max_mean_ulp"], seen["skipped"]) == (1.0, 3 * 8 * 512 + 3 * 8 * 256)


def test_many_requests_and_one_of_them_is_off(device: str) -> None:
    """More than the device's warps, and more tokens each than a warp has threads."""
    batch, each = 40, 33
    engines = torch.ones(batch * each, 2, 512, dtype=torch.bfloat16, device=device)
    ours = engines.clone()
    ours[37 * each : 38 * each] += 1 / 128
    compared = Compared(device)
    compared.kv = torch.arange(batch + 1, dtype=torch.int32, device=device)
    seen = compared.add(ours, engines)
    assert (seen["max_mean_ulp"], seen["mismatches"], seen["worst_request"]) == (1.0, 1, 37)


def test_nan_of_ours_is_a_mismatch_and_of_the_engine_is_skipped(device: str) -> None:
    ours, engines = outputs(device)
    engines[5] = float("nan")
    seen = Compared(device).add(ours, engines)
    assert seen["mismatches"] == 0 and seen["skipped"] == 8 * 512
    ours[0, 0, 0] = float("nan")
    seen = Compared(device).add(ours, engines)
    assert seen["mismatches"] == 1 and math.isinf(seen["max_abs"])
    assert math.isinf(seen["max_mean_ulp"]) and math.isfinite(seen["sum_mean_ulp"])


def test_compare_that_is_off_changes_nothing(device: str) -> None:
    off = torch.zeros(1, dtype=torch.int32, device=device)
    ours, engines = outputs(device)
    assert Compared(device).add(ours + 1, engines, enable=off)["compares"] == 0


def test_cpu_and_gpu_say_the_same(gpu: str) -> None:
    ours, engines = outputs("cpu")
    ours += torch.randn(ours.shape, generator=torch.Generator().manual_seed(2)).bfloat16() * 0.01
    on_cpu, on_gpu = Compared("cpu").add(ours, engines, layer=4), Compared(gpu).add(ours.cuda(), engines.cuda(), layer=4)
    for name in ("sum_mean_ulp", "max_mean_ulp"):
        assert on_cpu.pop(name) == pytest.approx(on_gpu.pop(name), rel=1e-5)
    assert on_cpu == on_gpu
