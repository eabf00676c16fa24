# SPDX-License-Identifier: Apache-2.0
"""The dashboards against Grafana's own types (grafana-foundation-sdk): every key is one that it knows, every value of its type."""

from __future__ import annotations

import enum
import json
import typing

import pytest
from grafana_foundation_sdk.cog import encoder, plugins
from grafana_foundation_sdk.models import dashboard as sdk

from contract_files import BOARDS, dashboard

plugins.register_default_plugins()
# The SDK's schema lacks it, Grafana's own exports have it: the query of a variable once more, as text.
UNKNOWN = {"definition"}


def fits(value: object, hint: object) -> bool:
    if hint is typing.Any or value is None:
        return True
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Union:
        return any(fits(value, argument) for argument in arguments)
    if origin is typing.Literal:
        return value in arguments
    if origin is list:
        return isinstance(value, list) and all(fits(item, arguments[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(fits(item, arguments[1]) for item in value.values())
    if hint in (int, float):
        return isinstance(value, (int, float) if hint is float else int) and not isinstance(value, bool)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return isinstance(value, hint) or value in [member.value for member in hint]
    if isinstance(hint, type) and isinstance(value, dict) and hasattr(hint, "from_json"):  # left as it came
        return not list(lost(value, json.loads(encoder.JSONEncoder().encode(hint.from_json(value))), hint.__name__))
    return not isinstance(hint, type) or isinstance(value, hint)


def misfits(thing: object, path: str) -> typing.Iterator[str]:
    """Attributes of the SDK's objects that are not of their declared type."""
    if isinstance(thing, list):
        for at, item in enumerate(thing):
            yield from misfits(item, f"{path}[{at}]")
    elif type(thing).__module__.startswith("grafana_foundation_sdk"):
        for name, hint in typing.get_type_hints(type(thing)).items():
            value = getattr(thing, name, None)
            if not fits(value, hint):
                yield f"{path}.{name} is {value!r}"
            yield from misfits(value, f"{path}.{name}")


def lost(given: object, kept: object, path: str) -> typing.Iterator[str]:
    """What the SDK didn't take over."""
    if isinstance(given, dict) and isinstance(kept, dict):
        for key, value in given.items():
            if key in kept:
                yield from lost(value, kept[key], f"{path}.{key}")
            elif key not in UNKNOWN:
                yield f"{path}.{key}"
    elif isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        for at, (one, other) in enumerate(zip(given, kept)):
            yield from lost(one, other, f"{path}[{at}]")
    elif given != kept:
        yield f"{path}: {given!r} became {kept!r}"


@pytest.mark.parametrize("board", BOARDS)
def test_grafana_knows_every_key_and_type(board: str) -> None:
    made = sdk.Dashboard.from_json(dashboard(board))
    assert not list(misfits(made, board))
    assert not list(lost(dashboard(board), json.loads(encoder.JSONEncoder(sort_keys=True).encode(made)), board))


def test_a_wrong_key_and_a_wrong_type_are_noticed() -> None:
    wrong = json.loads(json.dumps(dashboard(BOARDS[0])))
    wrong["panels"][0]["options"]["colourMode"] = "value"
    wrong["refresh"] = 10
    made = sdk.Dashboard.from_json(wrong)
    assert list(misfits(made, "b")) == ["b.refresh is 10"]
    assert list(lost(wrong, json.loads(encoder.JSONEncoder(sort_keys=True).encode(made)), "b")) == ["b.panels[0].options.colourMode"]
