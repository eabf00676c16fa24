# SPDX-License-Identifier: Apache-2.0
"""The release that this process runs from, and whether it is what its manifest lists."""
import hashlib
import json
import os
import sys

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
