#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Starts the heavy test engine under the engine's Python: serve.py --model-path X --ranks 2 ..."""
import sys

from serving.faults import FaultError
from serving.flags import parse
from serving.launcher import launch

DESCRIPTION = """kdtree's heavy test engine: SGLang's process model around SGLang 0.5.17's own TritonAttnBackend,
Triton kernel, MLA KV pool, slot allocator, expert selection and process groups; the model around them is small and
made here. On the CPU (--device cpu, the default) Triton's interpreter runs the kernel in fp16: about 0.3 s for one
layer's verify call. Every rank imports SGLang: 9 s of one core and 1.1 GB. 2 ranks unless --tp says otherwise; 4 need 5 GB and a minute."""


def main(argv: list[str]) -> int:
    """argv without the program's name -> exit status."""
    flags = parse(argv, DESCRIPTION, default_ranks=2, default_heads=2)
    if flags.attention_backend != "triton":
        print(f"error: --attention-backend {flags.attention_backend}: this engine has only triton", file=sys.stderr)
        return 2
    try:
        return launch("heavy", flags)
    except FaultError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
