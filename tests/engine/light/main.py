# SPDX-License-Identifier: Apache-2.0
"""Starts the light test engine."""
from __future__ import annotations

from serving.faults import FaultError
from serving.flags import parse
from serving.launcher import launch

DESCRIPTION = """kdtree's light test engine: SGLang's process model, flags, log lines and failures, and the names that the
patch touches, without SGLang and without PyTorch. Starts in about a second with 8 ranks. Processes, modes and failures
are real; its arithmetic means nothing."""


def main(argv: list[str]) -> int:
    """argv without the program's name -> exit status."""
    flags = parse(argv, DESCRIPTION, default_ranks=8, default_heads=1)
    try:
        return launch("light", flags)
    except FaultError as error:
        print(f"error: {error}")
        return 2
