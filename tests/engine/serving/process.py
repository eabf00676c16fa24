# SPDX-License-Identifier: Apache-2.0
"""What every process of the engine does about itself: name, parent's death, log format."""
from __future__ import annotations

import ctypes
import logging
import os
import signal

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15


def set_title(title: str) -> None:
    """Shows `title` in the process's command line where setproctitle is there, its first 15 bytes in comm elsewhere."""
    try:
        import setproctitle
    except ImportError:
        ctypes.CDLL(None).prctl(_PR_SET_NAME, title.encode()[:15], 0, 0, 0)
    else:
        setproctitle.setproctitle(title)


def die_with_parent(parent: int) -> None:
    """SIGKILL for this process as soon as `parent` (a pid) has ended, even if that was before this call."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def configure_log(level: str, prefix: str = "") -> None:
    """SGLang's log format, on stderr."""
    logging.basicConfig(level=getattr(logging, level.upper(), logging.INFO),
                        format=f"[%(asctime)s{prefix}] %(message)s", datefmt="%Y-%m-%d %H:%M:%S", force=True)
