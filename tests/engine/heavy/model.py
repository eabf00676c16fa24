# SPDX-License-Identifier: Apache-2.0
"""What serving.rank imports for the heavy flavour. Prepares the environment first: SGLang looks at it on import."""
from __future__ import annotations

import os
import sys
import warnings

from serving.faults import Faults
from serving.flags import Flags

from heavy.environment import prepare

prepare(os.environ.get("TEST_ENGINE_DEVICE", "cpu"))
warnings.filterwarnings("ignore", category=UserWarning)  # SGLang tells a CPU what it lacks
warnings.filterwarnings("ignore", category=RuntimeWarning, module="triton")  # exp(-inf - -inf) in the interpreter

from heavy import kernel_faults  # noqa: E402
from heavy.rank_model import RankModel  # noqa: E402
from sglang.srt.plugins import load_plugins  # noqa: E402,F401


def make_model(flags: Flags, rank: int, rendezvous: int, faults: Faults) -> RankModel:
    """The rank's model; its faults in the kernel are planted here, in the dispatcher, never in the product."""
    sys.stderr.flush()
    return RankModel(flags, rank, rendezvous, kernel_faults.KernelFaults(faults, rank))
