# SPDX-License-Identifier: Apache-2.0
"""python -m kdtree_kernel.selftest --lib PATH [--device cuda|cpu] --json: the same command and answer as kdtree's own,
about the stand-in ops. Exit 0 if they answer as the light engine's own kernel does, 1 otherwise."""
import argparse
import json
import random
import sys

import torch

from kdtree_kernel.ops import load


def case(prefix: int, n: int, heads: int, seed: int) -> float:
    """Largest difference between the op and the engine's own function over one random call."""
    from sglang.kernels.ops.attention.extend_attention import extend_attention_fwd

    chance = random.Random(seed)

    def noise(*shape: int) -> torch.Tensor:
        made = torch.zeros(*shape, dtype=torch.bfloat16)
        made._storage[:] = [chance.uniform(-1, 1) for _ in range(made.numel())]
        return made

    q, k, pool = noise(n, heads, 576), noise(n, 1, 576), noise(prefix + 2, 1, 576)
    own, engines = torch.zeros(n, heads, 512, dtype=q.dtype), torch.zeros(n, heads, 512, dtype=q.dtype)
    rows, bounds = torch.tensor([0, n], dtype=torch.int32), torch.tensor([0, prefix], dtype=torch.int32)
    slots = torch.arange(1, prefix + 1)
    extend_attention_fwd(q, k, k[..., :512], engines, pool, pool[..., :512], rows, bounds, slots, None, True, None, n,
                         1.0, 1.0, 0.1)
    torch.ops.kdtree.verify_attn(q, k, own, pool, rows, bounds, slots, None, None, None,
                                 torch.zeros(16, dtype=torch.uint8), n, 0.1)
    return (own - engines).abs().max().item()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lib", required=True)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cpu")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    answer = {"passed": False, "device": "cpu", "cases": 0, "worst": {}, "torch": torch.__version__, "stand_in": True}
    try:
        if given.device == "cuda":
            raise RuntimeError("the light test engine has no GPU")
        load(given.lib)
        worst = 0.0
        for seed, (prefix, n, heads) in enumerate(((1, 1, 1), (17, 9, 2), (40, 16, 1))):
            worst = max(worst, case(prefix, n, heads, seed))
            answer["cases"] += 1
        answer.update(passed=worst == 0.0, worst={"case": "all", "max_abs": worst})
    except Exception as error:
        answer["error"] = str(error)
    print(json.dumps(answer))
    return 0 if answer["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
