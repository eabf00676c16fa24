# SPDX-License-Identifier: Apache-2.0
"""Seeded weights of a size that real ones have: activations stay near 1, attention matters, logits are distinct.

SGLang's dummy weights are uniform in +-0.001: attention's output is then about 1e-10 and says nothing about a kernel.
"""
import os
import zlib

QUERY_GAIN = 2.0  # scores with a deviation of 3 to 4: attention picks some keys instead of averaging over all


def plan(name: str, shape: tuple[int, ...], layers: int) -> tuple[str, float]:
    """What fills a parameter: ("constant", value) or ("normal", standard deviation)."""
    if len(shape) < 2:
        return "constant", 0.0 if "bias" in name else 1.0
    if "embed_tokens" in name:
        return "normal", 1.0
    deviation = shape[-1] ** -0.5
    if "o_proj" in name or "down_proj" in name or "w2_weight" in name:
        return "normal", deviation * (2 * layers) ** -0.5
    if "q_b_proj" in name:
        return "normal", deviation * QUERY_GAIN
    return "normal", deviation


def skewed_experts() -> range | None:
    """Experts of KDTREE_TEST_SKEW, None if it isn't set."""
    text = os.environ.get("KDTREE_TEST_SKEW", "")
    if not text:
        return None
    first, last = map(int, text.split("-"))
    return range(first, last + 1)


def around_dummy_weights(original, model, *args, **kwargs) -> None:  # noqa: ANN001
    """In the place of initialize_dummy_weights(model): each parameter from its own seed, so all ranks agree."""
    import torch

    seed, skew = int(os.environ["KDTREE_TEST_WEIGHTS"]), skewed_experts()
    parameters = model.state_dict()
    layers = 1 + max((int(part) for name in parameters for part in name.split(".") if part.isdigit()), default=0)
    for name, parameter in parameters.items():
        if not torch.is_floating_point(parameter) or "cos_sin_cache" in name:
            continue
        kind, value = plan(name, tuple(parameter.shape), layers)
        if kind == "constant":
            parameter.fill_(value)
        else:
            generator = torch.Generator(device=parameter.device)
            generator.manual_seed(seed * 1_000_003 + zlib.crc32(name.encode()))
            parameter.normal_(0.0, value, generator=generator)
        if skew is not None and "e_score_correction_bias" in name:
            parameter[skew.start:skew.stop] = 100.0
