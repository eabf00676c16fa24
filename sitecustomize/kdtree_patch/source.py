# SPDX-License-Identifier: Apache-2.0
"""An engine's source, read and parsed but never imported."""
import ast
import io
import os
import re
import tokenize


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


def parameters(function: ast.FunctionDef) -> tuple[list[str], list[str]]:
    """(by position, by keyword alone), names."""
    arguments = function.args
    return [a.arg for a in arguments.posonlyargs + arguments.args], [a.arg for a in arguments.kwonlyargs]


def on_self(node: ast.AST) -> str:
    """X of an expression `self.X`, else ""."""
    plain = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    return node.attr if plain else ""


class Source:
    """The files of one package, each read once. Files that are missing or no Python hold nothing."""

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

    def find(self, place: tuple[str, ...], qualified: str) -> ast.AST | None:
        """The definition of a function, method or class, from the first file that has it."""
        found = self._search(place, qualified)
        return found[0] if found else None

    def text(self, place: tuple[str, ...], qualified: str) -> str:
        """Its source with decorators; "" where it isn't there."""
        found = self._search(place, qualified)
        if found is None:
            return ""
        node, lines = found
        first = min([node.lineno] + [d.lineno for d in node.decorator_list])
        return "\n".join(lines[first - 1:node.end_lineno])

    def _search(self, place: tuple[str, ...], qualified: str) -> tuple[ast.AST, list[str]] | None:
        for name in place:
            parsed = self._parse(name)
            if parsed is None:
                continue
            lines, node = parsed
            for part in qualified.split("."):
                node = next((n for n in node.body if getattr(n, "name", None) == part), None)
                if node is None or not hasattr(node, "body"):
                    break
            if node is not None:
                return node, lines
        return None

    def members(self, place: tuple[str, ...], qualified: str) -> set[str]:
        """What objects of a class have: its methods, its fields, whatever its methods store on self."""
        node = self.find(place, qualified)
        if node is None:
            return set()
        names = {n.name for n in node.body if hasattr(n, "name")}
        names |= {t.id for n in node.body for t in _targets(n) if isinstance(t, ast.Name)}
        return names | {on_self(n) for n in ast.walk(node) if isinstance(getattr(n, "ctx", None), ast.Store)}

    def constant(self, place: tuple[str, ...], qualified: str) -> object:
        """The literal that "NAME" or "Class.NAME" is set to; None if there is none."""
        owner, _, name = qualified.rpartition(".")
        for file in place:
            parsed = self._parse(file)
            body = parsed[1] if parsed and not owner else self.find((file,), owner)
            for node in getattr(body, "body", []):
                named = any(isinstance(t, ast.Name) and t.id == name for t in _targets(node))
                if named and isinstance(node.value, ast.Constant):
                    return node.value.value
        return None


def _targets(node: ast.AST) -> list[ast.AST]:
    return node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []


def version_of(folder: str) -> str:
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
