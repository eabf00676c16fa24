# SPDX-License-Identifier: Apache-2.0
"""The engine environment that the drop-in sets; read once, at start."""
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass

from .stats_format import MODES

DEFAULT_STATS_DIR = "/run/kdtree/stats"
DEFAULT_CONTROL = "/run/kdtree/control"


class SettingsError(Exception):
    """A variable with a value that can't be used; the text names it."""


@dataclass(frozen=True)
class Settings:
    """mode: what KDTREE_VERIFY says; library: path of libkdtree_torch.so; nsplit: None = chosen on the device;
    accepted: fingerprint of the engine that the operator accepted, "" = none; max_ulp, mean_ulp: what validate tolerates,
    in ULP of the output's type at its row's magnitude."""

    mode: int
    library: str
    stats_dir: str
    control: str
    sort: bool
    nsplit: int | None
    accepted: str
    max_ulp: float
    mean_ulp: float


def _one_of(environ: Mapping[str, str], name: str, values: Mapping[str, object], default: str) -> object:
    value = environ.get(name) or default
    if value not in values:
        raise SettingsError(f"{name}={value!r}: expected one of {', '.join(values)}")
    return values[value]


def _positive(environ: Mapping[str, str], name: str, default: float) -> float:
    text = environ.get(name) or str(default)
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise SettingsError(f"{name}={text!r}: expected a number above 0")
    return value


def read_settings(environ: Mapping[str, str]) -> Settings:
    """Errors: SettingsError."""
    library = environ.get("KDTREE_LIB", "")
    if not library.startswith("/"):
        raise SettingsError(f"KDTREE_LIB={library!r}: expected the absolute path of libkdtree_torch.so")
    nsplit = environ.get("KDTREE_NSPLIT", "")
    if nsplit and not (nsplit.isascii() and nsplit.isdigit() and 1 <= int(nsplit) <= 1024):
        raise SettingsError(f"KDTREE_NSPLIT={nsplit!r}: expected nothing or a number from 1 to 1024")
    return Settings(
        mode=_one_of(environ, "KDTREE_VERIFY", MODES, "off"),
        library=library,
        stats_dir=stats_dir(environ),
        control=environ.get("KDTREE_CONTROL") or DEFAULT_CONTROL,
        sort=_one_of(environ, "KDTREE_DEFRAG_SORT", {"0": False, "1": True}, "1"),
        nsplit=int(nsplit) if nsplit else None,
        accepted=environ.get("KDTREE_ACCEPT_ENGINE", "").strip().lower(),
        max_ulp=_positive(environ, "KDTREE_MAX_ULP", 4.0),
        mean_ulp=_positive(environ, "KDTREE_MEAN_ULP", 0.5),
    )


def stats_dir(environ: Mapping[str, str]) -> str:
    """Where stats files go; known even where the rest of the environment is refused."""
    return environ.get("KDTREE_STATS_DIR") or DEFAULT_STATS_DIR


def environment_digest(environ: Mapping[str, str]) -> str:
    """sha256 (hex) of "NAME=value\\n" for KDTREE_* and PYTHONPATH, sorted by name."""
    names = sorted(name for name in environ if name.startswith("KDTREE_") or name == "PYTHONPATH")
    text = "".join(f"{name}={environ[name]}\n" for name in names)
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
