# SPDX-License-Identifier: Apache-2.0
"""Which rank this process is, as the engine itself says. Never guessed: what the engine doesn't say stays -1."""
import sys
from dataclasses import dataclass

from .contract import GROUP_RANKS, RANKS


@dataclass
class Ranks:
    """-1 = unknown; device: "cuda", "cpu", "" = unknown; gpu: torch device index, -1 = none or unknown."""

    tp_rank: int = -1
    tp_size: int = -1
    moe_ep_rank: int = -1
    moe_ep_size: int = -1
    device: str = ""
    gpu: int = -1


def _number(source: object, name: str) -> int:
    try:
        value = getattr(source, name)
        value = value() if callable(value) else value
    except Exception:  # a property of the engine whose group doesn't exist yet asserts
        return -1
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else -1


def _sources(model_runner: object) -> list[object]:
    sources = [getattr(model_runner, "ps", None), model_runner]
    context = sys.modules.get("sglang.srt.runtime_context")
    if context is not None:
        sources.append(getattr(context, "get_parallel", lambda: None)())
    return [s for s in sources if s is not None]


def read_ranks(model_runner: object | None = None) -> Ranks:
    """From the model runner, else from the engine's parallel state if it is up. Imports nothing."""
    ranks = Ranks()
    for source in _sources(model_runner):
        for name in RANKS:
            if getattr(ranks, name) < 0:
                setattr(ranks, name, _number(source, name))
    state = sys.modules.get("sglang.srt.distributed.parallel_state")
    if state is not None:
        for prefix, (rank, size) in GROUP_RANKS.items():
            if getattr(ranks, prefix + "_rank") < 0:
                setattr(ranks, prefix + "_rank", _number(state, rank))
                setattr(ranks, prefix + "_size", _number(state, size))
    ranks.device = str(getattr(model_runner, "device", "") or "").split(":")[0]
    gpu = _number(model_runner, "gpu_id")
    ranks.gpu = gpu if gpu >= 0 else _number(getattr(model_runner, "ps", None), "gpu_id")
    return ranks


def device_facts(device: str, index: int) -> tuple[str, str]:
    """(uuid as NVML prints it, name) of a torch device; ("", "cpu") on the CPU. Errors: what torch raises."""
    if device != "cuda":
        return "", device
    torch = sys.modules["torch"]
    properties = torch.cuda.get_device_properties(index if index >= 0 else torch.cuda.current_device())
    uuid = str(getattr(properties, "uuid", "") or "")
    return (uuid if uuid.startswith("GPU-") or not uuid else f"GPU-{uuid}"), properties.name
