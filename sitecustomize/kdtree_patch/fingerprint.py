# SPDX-License-Identifier: Apache-2.0
"""What an engine's source looks like where kdtree touches it or relies on it. Reads files only: imports no engine.

An item's digest is that of its source lines without comments, blank lines, trailing blanks and common indentation, so it
is the same under every Python. The fingerprint is the digest of all items' digests; engines.json holds the known ones.
"""
import ast
import hashlib
import importlib.util
import io
import json
import os
import re
import tokenize
from dataclasses import dataclass, field

_TRITON = ("srt/layers/attention/triton_backend.py",)
_EXTEND = ("kernels/ops/attention/extend_attention.py", "srt/layers/attention/triton_ops/extend_attention.py")
_ALLOCATOR = ("srt/mem_cache/allocator/token.py", "srt/mem_cache/allocator.py")
_ALLOCATOR_BASE = ("srt/mem_cache/allocator/base.py", "srt/mem_cache/allocator.py")
_TOPK = ("srt/layers/moe/topk.py",)
_RUNNER = ("srt/model_executor/model_runner.py",)
_MODE = ("srt/model_executor/forward_batch_info.py",)

# (file candidates in the package, qualified name): wrapped by kdtree, or deciding what the wrapped call means.
ITEMS: tuple[tuple[tuple[str, ...], str], ...] = (
    (_TRITON, "TritonAttnBackend.__init__"),
    (_TRITON, "TritonAttnBackend.forward_extend"),
    (_TRITON, "TritonAttnBackend.init_forward_metadata"),
    (_TRITON, "TritonAttnBackend._update_target_verify_buffers"),
    (_TRITON, "TritonAttnBackend._build_cuda_graph_forward_metadata"),
    (_EXTEND, "extend_attention_fwd"),
    (_EXTEND, "_fwd_kernel"),
    (_ALLOCATOR, "TokenToKVPoolAllocator"),
    (_ALLOCATOR_BASE, "BaseTokenToKVPoolAllocator.merge_and_sort_free"),
    (_TOPK, "capture_routed_experts_if_allowed"),
    (_TOPK, "select_experts"),
    (_TOPK, "_post_process_topk_ids"),
    (_RUNNER, "ModelRunner.forward"),
    (_MODE, "ForwardMode.is_target_verify"),
)

# Parameter names without which kdtree can't act, and where they are. The first set is positional, in this order.
REQUIRED = {
    "TritonAttnBackend.forward_extend": ("self", "q", "k", "v", "layer", "forward_batch"),
    "TritonAttnBackend.__init__": ("self", "model_runner"),
    "extend_attention_fwd": ("q_extend", "k_extend", "v_extend", "o_extend", "k_buffer", "v_buffer", "qo_indptr",
                             "kv_indptr", "kv_indices", "custom_mask", "is_causal", "mask_indptr", "max_len_extend"),
    "TokenToKVPoolAllocator.__init__": ("self", "size", "dtype", "device", "kvcache", "need_sort"),
}
_REQUIRED_IN = {"TritonAttnBackend.forward_extend": _TRITON, "TritonAttnBackend.__init__": _TRITON,
                "extend_attention_fwd": _EXTEND, "TokenToKVPoolAllocator.__init__": _ALLOCATOR}


@dataclass
class Engine:
    """One engine as found on disk. items: qualified name -> sha256, "" = not there; binds: every required signature is
    there; differences: to the nearest known engine, [] if known."""

    version: str
    folder: str
    fingerprint: str
    items: dict[str, str]
    known: bool = False
    binds: bool = False
    differences: list[str] = field(default_factory=list)


def normalise(source: str) -> str:
    """Source lines without comments, blank lines, trailing blanks and common indentation."""
    lines = source.splitlines()
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                row, column = token.start
                lines[row - 1] = lines[row - 1][:column]
    except (tokenize.TokenError, IndentationError):
        pass  # the segment of an indented body ends early; what was cut before stays cut
    kept = [line.rstrip() for line in lines if line.strip()]
    indent = min((len(line) - len(line.lstrip()) for line in kept), default=0)
    return "\n".join(line[indent:] for line in kept)


class _Files:
    """Parsed source files of one package, each read once."""

    def __init__(self, folder: str):
        self._folder = folder
        self._parsed: dict[str, tuple[list[str], ast.Module] | None] = {}

    def _parse(self, name: str) -> tuple[list[str], ast.Module] | None:
        if name not in self._parsed:
            try:
                with open(os.path.join(self._folder, name), encoding="utf-8") as file:
                    text = file.read()
                self._parsed[name] = text.splitlines(), ast.parse(text)
            except (OSError, SyntaxError, ValueError):
                self._parsed[name] = None
        return self._parsed[name]

    def find(self, names: tuple[str, ...], qualified: str) -> tuple[ast.AST, str] | None:
        """(syntax node, its source with decorators), from the first file that has it."""
        for name in names:
            parsed = self._parse(name)
            if parsed is None:
                continue
            lines, node = parsed
            for part in qualified.split("."):
                node = next((n for n in node.body if getattr(n, "name", None) == part), None)
                if node is None or not hasattr(node, "body"):
                    break
            if node is not None:
                first = min([node.lineno] + [d.lineno for d in node.decorator_list])
                return node, "\n".join(lines[first - 1:node.end_lineno])
        return None


def _binds(files: _Files) -> list[str]:
    missing = []
    for qualified, wanted in REQUIRED.items():
        found = files.find(_REQUIRED_IN[qualified], qualified)
        if found is None:
            missing.append(f"{qualified} is not there")
            continue
        arguments = found[0].args
        names = [a.arg for a in arguments.posonlyargs + arguments.args]
        if tuple(names[:len(wanted)]) != wanted:
            missing.append(f"{qualified} takes ({', '.join(names[:len(wanted)])}), expected ({', '.join(wanted)})")
    return missing


def _version(folder: str) -> str:
    """From _version.py, else from the dist-info folder beside the package; "" = unknown."""
    try:
        with open(os.path.join(folder, "_version.py"), encoding="utf-8") as file:
            found = re.search(r"""^(?:__version__|version)\b[^'"\n]*['"]([^'"\n]+)['"]""", file.read(), re.MULTILINE)
        if found:
            return found.group(1)
    except OSError:
        pass
    for name in sorted(os.listdir(os.path.dirname(folder))):
        found = re.fullmatch(r"sglang-([^-]+)\.dist-info", name)
        if found:
            return found.group(1)
    return ""


def known_engines() -> list[dict[str, object]]:
    """engines.json: [{"engine", "version", "fingerprint", "items"}]."""
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "engines.json"), encoding="utf-8") as file:
        return json.load(file)["engines"]


def fingerprint_of(items: dict[str, str]) -> str:
    """sha256 (hex) over "name digest\\n", sorted by name."""
    return hashlib.sha256("".join(f"{n} {d or 'missing'}\n" for n, d in sorted(items.items())).encode()).hexdigest()


def find_package() -> str:
    """Folder of the sglang package that this Python would import (without importing it); "" = there is none."""
    try:
        spec = importlib.util.find_spec("sglang")
    except (ImportError, ValueError):
        return ""
    places = list(spec.submodule_search_locations or []) if spec else []
    return places[0] if places else ""


def examine(folder: str) -> Engine:
    """Fingerprints the engine whose package lies at `folder` and compares it with the known ones."""
    files = _Files(folder)
    items = {}
    for names, qualified in ITEMS:
        found = files.find(names, qualified)
        items[qualified] = hashlib.sha256(normalise(found[1]).encode()).hexdigest() if found else ""
    engine = Engine(_version(folder), folder, fingerprint_of(items), items)
    unbound = _binds(files)
    engine.binds = not unbound
    known = known_engines()
    engine.known = any(k["fingerprint"] == engine.fingerprint for k in known)
    if not engine.known:
        engine.differences = unbound + _nearest(engine, known)
    return engine


def _nearest(engine: Engine, known: list[dict[str, object]]) -> list[str]:
    best: list[str] | None = None
    for other in reversed(known):  # of two equally near ones the newer
        label = f"{other['engine']} {other['version']}"
        found = []
        for name, digest in sorted(engine.items.items()):
            if digest != other["items"].get(name, ""):
                what = "is missing" if not digest else "is new" if not other["items"].get(name) else "differs"
                found.append(f"{name} {what} (compared with {label})")
        if best is None or len(found) < len(best):
            best = found
    return best if best is not None else ["no known engine to compare with"]
