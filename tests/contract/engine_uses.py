# SPDX-License-Identifier: Apache-2.0
"""Finds what kdtree_patch uses of SGLang, in its source.

The package annotates what is its own; `object`, `Callable` or nothing says that a value comes from outside, and so does
sys.modules. What is read from such a parameter, from an attribute that keeps one, or from a local made from one is a use;
so is a parameter of a function that wraps one of SGLang's, a subscript of bound arguments, and every "sglang.…" text."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

# Parameters annotated `object` that are kdtree's own, to keep modules apart that would import each other.
OWN = {"patch", "kernel", "observer", "callback", "torch", "call", "ops"}
# What is read from tensors and torch objects, which come in through the same doors.
TORCH = {"compiler", "cuda", "current_device", "data_ptr", "device", "dim", "dtype", "get_device_properties", "index",
         "int32", "is_compiling", "is_current_stream_capturing", "name", "numel", "shape", "stride", "tolist", "type", "uint8",
         "uuid", "value", "view", "zeros", "zeros_like"}
PYTHON = {"VAR_KEYWORD", "VAR_POSITIONAL", "append", "args", "arguments", "bind", "create_module", "default", "empty",
          "endswith", "exec_module", "get", "items", "kind", "kwargs", "loader", "modules", "parameters", "split",
          "startswith", "strip", "values"}
SOURCE_READERS = {"contract.py", "bind.py", "source.py", "fingerprint.py"}
READERS = {"getattr", "hasattr", "setattr", "delattr", "_number"}  # (object, name)


@dataclass(frozen=True)
class Use:
    """One name of SGLang's; where is "file:line"."""

    name: str
    where: str


class _Finder(ast.NodeVisitor):
    def __init__(self, tree: ast.Module, file: str, own: set[str]):
        self.file, self.own = file, own
        self.kept: set[str] = set()  # attributes of kdtree's objects that hold what came from outside
        self.uses: list[Use] = []
        self.blind: list[str] = []  # getattr with a name that can't be read off
        self.texts = {t.id: n.value.value for n in tree.body if isinstance(n, ast.Assign) and isinstance(n.value, ast.Constant)
                      for t in n.targets if isinstance(t, ast.Name)}
        self.foreign: set[str] = set()
        self.derived: set[str] = set()
        self.classes = 0
        self.visit(tree)

    def use(self, name: str, node: ast.AST) -> None:
        if not re.fullmatch(r"__\w+__", name):
            self.uses.append(Use(name, f"{self.file}:{node.lineno}"))

    # scopes

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.classes += 1
        self.generic_visit(node)
        self.classes -= 1

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        before = self.foreign, self.derived, self.classes
        self.foreign, self.derived = set(self.foreign), set(self.derived)
        wraps = any("wraps" in ast.unparse(d) for d in node.decorator_list)
        for given in node.args.posonlyargs + node.args.args + node.args.kwonlyargs:
            kind = ast.unparse(given.annotation) if given.annotation else "object"
            if given.arg == "self" and self.classes and not wraps:
                continue
            self.foreign.discard(given.arg)
            if kind.split(" | ")[0].split("[")[0] in ("object", "Callable") and given.arg not in OWN:
                self.foreign.add(given.arg)
            if wraps and given.arg != "self":
                self.use(given.arg, node)
        self.classes = 0
        for _ in range(2):  # a local that is made from one made later
            for assigned in ast.walk(node):
                self.derive(assigned)
        self.generic_visit(node)
        self.foreign, self.derived, self.classes = before

    def derive(self, node: ast.AST) -> None:
        """Locals that are made from what came from outside."""
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
            targets, value = getattr(node, "targets", None) or [node.target], node.value
        elif isinstance(node, (ast.For, ast.comprehension)):
            targets, value = [node.target], node.iter
        else:
            return
        if isinstance(targets[0], ast.Tuple) and isinstance(value, ast.Tuple):
            pairs = list(zip(targets[0].elts, value.elts))
        else:
            pairs = [(target, value) for target in targets]
        self.kept |= {t.attr for t, v in pairs if isinstance(t, ast.Attribute) and ast.unparse(t.value) == "self"
                      and isinstance(v, ast.Name) and v.id in self.foreign}
        if self.tainted(value):
            self.derived |= {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)
                             and isinstance(n.ctx, ast.Store)} - self.foreign - OWN

    def tainted(self, value: ast.AST) -> bool:
        return any(isinstance(n, ast.Name) and n.id in self.foreign | self.derived or
                   isinstance(n, ast.Attribute) and (n.attr in self.kept or ast.unparse(n) == "sys.modules")
                   for n in ast.walk(value))

    # uses

    def root(self, node: ast.AST) -> str:
        """The name that an expression starts from; "" = none."""
        while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
            node = node.func if isinstance(node, ast.Call) else node.value
        return node.id if isinstance(node, ast.Name) else ""

    def outside(self, node: ast.AST, name: str) -> bool:
        """`name`, read from this expression, is SGLang's."""
        if name in TORCH | PYTHON:
            return False
        root = self.root(node)
        direct = isinstance(node, ast.Name) and root in self.foreign or isinstance(node, ast.Attribute) and node.attr in self.kept
        return direct or ((root in self.foreign | self.derived or self.tainted(node)) and name not in self.own)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if self.outside(node.value, node.attr):
            self.use(node.attr, node)
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        key = node.slice.value if isinstance(node.slice, ast.Constant) else None
        arguments = ast.unparse(node.value).split(".")
        if isinstance(key, str) and (arguments[0] == "bound" or arguments[-1] in ("arguments", "__dict__")):
            self.use(key, node)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = ast.unparse(node.func)
        if name in READERS:
            self.by_name(node)
        elif name in ("bound.get", "self.__dict__.get", "cls.__dict__.get", "module.__dict__.get"):
            self.use(node.args[0].value if isinstance(node.args[0], ast.Constant) else self.texts[node.args[0].id], node)
        self.generic_visit(node)

    def by_name(self, node: ast.Call) -> None:
        given = node.args[1]
        text = given.value if isinstance(given, ast.Constant) else self.texts.get(getattr(given, "id", ""))
        if not isinstance(text, str):
            self.blind.append(f"{self.file}:{node.lineno}: {ast.unparse(node)}")
        elif self.outside(node.args[0], text):
            self.use(text, node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and re.fullmatch(r"sglang(\.\w+)+", node.value):
            self.use(node.value, node)


def own_names(trees: list[ast.Module]) -> set[str]:
    """Attributes that kdtree's own classes and modules have."""
    names = {n.name for tree in trees for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    for node in (n for tree in trees for n in ast.walk(tree)):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            names.add(node.attr)
        elif isinstance(node, ast.ClassDef):
            names |= {t.id for n in node.body if isinstance(n, ast.AnnAssign) for t in [n.target]}
            slots = [n.value for n in node.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "__slots__"]
            names |= {c.value for s in slots for c in ast.walk(s) if isinstance(c, ast.Constant)}
    return names


def find_uses(sources: dict[str, str]) -> tuple[list[Use], list[str]]:
    """(uses, calls of getattr whose name can't be read off) of sources by file name. The modules that only read an engine's
    source meet no object of it."""
    trees = {file: ast.parse(text) for file, text in sources.items()}
    own = own_names(list(trees.values()))
    found = [_Finder(tree, file, own) for file, tree in trees.items() if file not in SOURCE_READERS]
    return [u for f in found for u in f.uses], [b for f in found for b in f.blind]


def patch_sources(package: Path) -> dict[str, str]:
    return {p.name: p.read_text() for p in sorted(package.glob("*.py"))}
