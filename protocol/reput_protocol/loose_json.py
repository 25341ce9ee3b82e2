"""JSON bodies as RocketMQ's brokers and tools write and read them (RocketMQ: RemotingSerializable).

Written strictly and without blanks, because the Go client's route parser trips over a blank. There is one exception
to strictness: a map keyed by message queue has objects as keys, as Java's library writes it and every client expects
it. Read leniently in just two points, both Java's: keys may be bare integers or objects. The interpreter's own parser
reads both: loose keys are put in quotes first.
"""

from __future__ import annotations

import json
import re
from secrets import token_hex
from typing import Any, Final, NoReturn, TypeAlias

from msgspec.json import Encoder

from reput_protocol.buffers import Buffer
from reput_protocol.errors import BodyMalformed

ObjectKey: TypeAlias = tuple[tuple[str, Any], ...]
"""What an object that stands as a key is read as: its members, sorted by name."""

LOOSE_BYTES_MAX: Final = 2048
"""The largest text with loose keys that is read from a stranger: such a key costs some microseconds."""

_STRING: Final = r'"(?:[^"\\]++|\\.)*+"?'
_FLAT_REST: Final = rf'(?:[^{{}}"]++|{_STRING})*+\}}'
"""An object without others in it, from behind its brace on."""
_UP_TO_KEY: Final = re.compile(
    # All that is no loose key, which only a colon tells: strings, numbers and opening braces among the rest. Nothing
    # that was matched is given back (`++`), so the time is in proportion to the text.
    rf'((?:[^"{{0-9]++|{_STRING}|[0-9]++(?!\s*+:)|\{{(?!{_FLAT_REST}\s*+:))*+)'
    rf"(?:([0-9]++)|(\{{{_FLAT_REST})|\Z)",
    re.DOTALL,
)


encode_json = Encoder(order="sorted").encode
"""Return a value, structs among them, as compact JSON with sorted keys."""


def read_json(data: Buffer, *, loose_bytes_max: int = LOOSE_BYTES_MAX) -> dict[Any, Any]:
    """Read a body that must be one object. A key that is an object becomes an `ObjectKey`.

    Args:
        data: the text, in UTF-8.
        loose_bytes_max: how large a text with loose keys may be. What a broker or a file of ours holds may be larger
            than the default, which is for requests.

    Raises:
        BodyMalformed: it is no UTF-8, no such JSON, no object, or nested too deeply.
    """
    try:
        text = str(data, "utf-8")
        try:
            value = json.loads(text, parse_constant=_refuse_constant)
        except json.JSONDecodeError:
            if len(data) > loose_bytes_max:
                raise
            value = _read_loosely(text)
    except (ValueError, RecursionError) as error:
        raise BodyMalformed(f"JSON body cannot be read: {error}") from None
    if type(value) is not dict:
        raise BodyMalformed(f"JSON body is a {type(value).__name__} and not an object")
    return value


def _read_loosely(text: str) -> object:
    stand_in = token_hex()  # which no text holds by accident, nor by design
    objects: dict[str, ObjectKey] = {}

    def quoted(match: re.Match[str]) -> str:
        before, number, key = match.groups()
        if number is not None:
            return f'{before[:-1]}"-{number}"' if before.endswith("-") else f'{before}"{number}"'
        if key is None:
            return before
        members = json.loads(key, parse_constant=_refuse_constant)
        if any(isinstance(value, (dict, list)) for value in members.values()):
            raise ValueError("a key has members that are not plain")
        name = f"{stand_in}{len(objects)}"
        objects[name] = tuple(sorted(members.items()))
        return f'{before}"{name}"'

    def with_keys(members: list[tuple[str, Any]]) -> dict[Any, Any]:
        return {objects.get(name, name): value for name, value in members}

    return json.loads(
        _UP_TO_KEY.sub(quoted, text), parse_constant=_refuse_constant, object_pairs_hook=with_keys
    )


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
