# SPDX-License-Identifier: Apache-2.0
"""Does an engine have what kdtree relies on (contract.py)? Answered from its source."""
import ast
import re
from dataclasses import dataclass

from .contract import TABLE, Attributes, Call, Function, Value
from .source import Source, on_self, parameters


@dataclass(frozen=True)
class Unmet:
    """One thing that an engine lacks. without: what kdtree does then; "" = it can't do without."""

    what: str
    without: str


def unmet(source: Source, table: tuple[object, ...] = TABLE) -> list[Unmet]:
    """What the engine lacks of the table, in its order; [] = nothing."""
    checks = {Function: _function, Attributes: _attributes, Call: _call, Value: _value}
    return [Unmet(text, entry.without) for entry in table for text in checks[type(entry)](source, entry)]


def missing(source: Source) -> list[str]:
    """What kdtree can't do without."""
    return [lack.what for lack in unmet(source, tuple(entry for entry in TABLE if not entry.without))]


def _function(source: Source, wanted: Function) -> list[str]:
    found = source.find(wanted.place, wanted.name)
    if found is None:
        return [f"{wanted.name} is not there"]
    if not isinstance(found, ast.FunctionDef):
        return []
    positional, keyword = parameters(found)
    first = tuple(positional[:len(wanted.leading)])
    if first != wanted.leading:
        return [f"{wanted.name} takes ({', '.join(first)}), expected ({', '.join(wanted.leading)})"]
    return [f"{wanted.name} takes no {name}" for name in wanted.named if name not in positional + keyword]


def _attributes(source: Source, wanted: Attributes) -> list[str]:
    there = set().union(*(source.members(place, name) for place, name in wanted.classes))
    classes = " or ".join(name for _, name in wanted.classes)
    return [f"{wanted.of}.{name} is not there ({classes})" for name in wanted.names if name not in there]


def _value(source: Source, wanted: Value) -> list[str]:
    found = source.constant(wanted.place, wanted.name)
    return [] if found == wanted.value else [f"{wanted.name} is {found!r}, expected {wanted.value!r}"]


def _call(source: Source, wanted: Call) -> list[str]:
    owner = source.find(wanted.place, wanted.caller.rpartition(".")[0])
    caller, callee = source.find(wanted.place, wanted.caller), source.find(wanted.function.place, wanted.function.name)
    if owner is None or caller is None or callee is None:
        return [f"{wanted.caller} does not call {wanted.attribute}"]
    names, _ = parameters(callee)
    ways = [given for call in _calls(caller, wanted.attribute) for given in _given(call, names)]
    ways += _through_helpers(owner, caller, wanted.attribute, names)
    if not ways:
        return [f"{wanted.caller} does not call {wanted.attribute}"]
    return [f"{wanted.caller} gives {wanted.attribute} {given.get(name) or 'no argument'} as {name}, expected {text}"
            for given in ways for name, text in wanted.means
            if not re.search(rf"(?<!\w){re.escape(text)}(?!\w)", given.get(name, ""))]


def _calls(function: ast.AST, attribute: str) -> list[ast.Call]:
    return [n for n in ast.walk(function) if isinstance(n, ast.Call) and on_self(n.func) == attribute]


def _given(call: ast.Call, names: list[str], skip: int = 0) -> list[dict[str, str]]:
    """[parameter -> source of its argument], [] for a call that passes on *args. skip: arguments that go elsewhere."""
    if any(isinstance(a, ast.Starred) for a in call.args):
        return []
    given = {name: ast.unparse(a) for name, a in zip(names, call.args[skip:])}
    given.update((k.arg, ast.unparse(k.value)) for k in call.keywords if k.arg)
    return [given]


def _through_helpers(owner: ast.AST, caller: ast.AST, attribute: str, names: list[str]) -> list[dict[str, str]]:
    """Ways through a method of the same class that passes its *args on."""
    ways = []
    for helper in (n for n in owner.body if isinstance(n, ast.FunctionDef) and n.args.vararg):
        passes_on = any(isinstance(call.args[0], ast.Starred) for call in _calls(helper, attribute) if call.args)
        if passes_on:
            own = len(parameters(helper)[0]) - 1  # without self
            ways += [given for call in _calls(caller, helper.name) for given in _given(call, names, own)]
    return ways
