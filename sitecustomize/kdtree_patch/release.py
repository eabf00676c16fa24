# SPDX-License-Identifier: Apache-2.0
"""The release that this process runs from: whether it is what its manifest lists, and was made for what it meets here."""
import hashlib
import json
import os
import platform
import re
import sys

from .fingerprint import Engine

DRIVER_FILE = "/proc/driver/nvidia/version"
_PACKAGES = ("kdtree_patch", "kdtree_kernel")


class KernelError(Exception):
    """The kernel can't be used in this process; the text says why."""


def read_manifest(library: str) -> dict[str, object]:
    """manifest.json two folders above the library. Errors: KernelError."""
    path = os.path.join(folder_of(library), "manifest.json")
    try:
        with open(path, encoding="utf-8") as file:
            manifest = json.load(file)
    except (OSError, ValueError) as error:
        raise KernelError(f"release manifest {path}: {error}") from error
    if not isinstance(manifest, dict) or not isinstance(manifest.get("release"), str):
        raise KernelError(f"release manifest {path}: names no release")
    return manifest


def folder_of(library: str) -> str:
    """The release's folder."""
    return os.path.dirname(os.path.dirname(library))


def digest_of(path: str) -> str:
    """sha256 (hex) of a file. Errors: KernelError."""
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError as error:
        raise KernelError(f"release file {path}: {error.strerror}") from error


def driver_version(path: str = "") -> str:
    """Version of the loaded NVIDIA driver, from its own file (no CUDA call); "" = unknown."""
    try:
        with open(path or DRIVER_FILE, encoding="utf-8", errors="replace") as file:
            found = re.search(r"(?<![\w.])\d+\.\d+(?:\.\d+)?(?![\w.])", file.readline())
    except OSError:
        return ""
    return found.group() if found else ""


def _minor(python: str) -> str:
    return ".".join(python.split(".")[:2])


def check_made_for(manifest: dict[str, object], engine: Engine, torch: str) -> None:
    """The engine, torch, Python (its minor version) and driver are those of the manifest; a driver
    that isn't known on both sides isn't compared. Errors: KernelError."""
    said = {name: str(manifest.get(name) or "") for name in (
        "engine_version", "engine_fingerprint", "torch", "python_version", "driver")}
    if said["engine_fingerprint"] != engine.fingerprint:
        raise KernelError(
            f"made for engine {said['engine_version'] or 'unknown'} (fingerprint {said['engine_fingerprint'][:16]}), this is "
            f"{engine.version} ({engine.fingerprint[:16]}): deploy again")
    if said["torch"] != torch:
        raise KernelError(f"built for torch {said['torch'] or 'unknown'}, the engine runs {torch}: deploy again")
    if _minor(said["python_version"]) != _minor(platform.python_version()):
        raise KernelError(f"made for Python {said['python_version'] or 'unknown'}, the engine runs "
                          f"{platform.python_version()}: deploy again")
    driver = driver_version()
    if said["driver"] and driver and said["driver"] != driver:
        raise KernelError(f"made for driver {said['driver']}, this host runs {driver}: deploy again")


def check_files(manifest: dict[str, object], library: str) -> None:
    """Every file under lib/ and python/ that the manifest lists: what a worker may load. Errors: KernelError."""
    for name, digest in (manifest.get("files") or {}).items():
        path = os.path.join(folder_of(library), name)
        if name.startswith(("lib/", "python/")) and digest_of(path) != digest:
            raise KernelError(f"release file {path} is not the file that its manifest lists")


def check_modules(manifest: dict[str, object], library: str) -> None:
    """Each module of ours that is loaded is one of the manifest's files, if it lists that package at all.
    Errors: KernelError."""
    listed, root = manifest.get("files") or {}, os.path.realpath(folder_of(library))
    for package in _PACKAGES:
        if not any(name.startswith(f"python/{package}/") for name in listed):
            continue
        for name, module in list(sys.modules.items()):
            path = getattr(module, "__file__", None)
            if name.split(".", 1)[0] == package and path:
                if os.path.relpath(os.path.realpath(path), root) not in listed:
                    raise KernelError(f"{name} was loaded from {path}, which is no file of release {manifest['release']}")
