"""Reading the members of a JSON body with their types checked; what is missing takes a default."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, TypeVar

from reput_protocol.errors import BodyMalformed

E = TypeVar("E", bound=StrEnum)

_I64_MIN: Final = -0x8000_0000_0000_0000
_I64_MAX: Final = 0x7FFF_FFFF_FFFF_FFFF
_NUMBER_MAX: Final = 1e300


def integer_member(members: Mapping[Any, Any], name: str, default: int = 0) -> int:
    """Return a 64-bit integer member; raises BodyMalformed for anything else."""
    value = members.get(name)
    if value is None:
        return default
    if type(value) is not int or not _I64_MIN <= value <= _I64_MAX:
        raise BodyMalformed(f"member {name!r} is not a 64-bit integer")
    return value


def text_member(members: Mapping[Any, Any], name: str, default: str = "") -> str:
    """Return a text member; raises BodyMalformed for anything else."""
    value = members.get(name)
    if value is None:
        return default
    if type(value) is not str:
        raise BodyMalformed(f"member {name!r} is not text")
    return value


def number_member(members: Mapping[Any, Any], name: str, default: float = 0.0) -> float:
    """Return a finite number that may have a fraction; raises BodyMalformed for anything else."""
    value = members.get(name)
    if value is None:
        return default
    if (type(value) is not int and type(value) is not float) or not abs(value) <= _NUMBER_MAX:
        raise BodyMalformed(f"member {name!r} is not a number")
    return float(value)


def choice_member(members: Mapping[Any, Any], name: str, default: E) -> E:
    """Return a member that is one of the words of `default`'s type; raises BodyMalformed for anything else."""
    value = members.get(name)
    if value is None:
        return default
    try:
        return type(default)(value)
    except ValueError:
        known = ", ".join(type(default))
        raise BodyMalformed(f"member {name!r} is not one of {known}") from None


def flag_member(members: Mapping[Any, Any], name: str, default: bool = False) -> bool:
    """Return a boolean member; raises BodyMalformed for anything else."""
    value = members.get(name)
    if value is None:
        return default
    if type(value) is not bool:
        raise BodyMalformed(f"member {name!r} is not a boolean")
    return value


def map_member(members: Mapping[Any, Any], name: str) -> dict[Any, Any]:
    """Return an object member, empty if it is missing; raises BodyMalformed for anything else."""
    value = members.get(name)
    if value is None:
        return {}
    if type(value) is not dict:
        raise BodyMalformed(f"member {name!r} is not an object")
    return value


def list_member(members: Mapping[Any, Any], name: str) -> list[Any]:
    """Return an array member, empty if it is missing; raises BodyMalformed for anything else."""
    value = members.get(name)
    if value is None:
        return []
    if type(value) is not list:
        raise BodyMalformed(f"member {name!r} is not an array")
    return value


def text_list_member(members: Mapping[Any, Any], name: str) -> list[str]:
    """Return an array of texts; raises BodyMalformed for anything else."""
    items = list_member(members, name)
    if not all(type(item) is str for item in items):
        raise BodyMalformed(f"member {name!r} is not an array of texts")
    return items


def integer_list_member(members: Mapping[Any, Any], name: str) -> list[int]:
    """Return an array of 64-bit integers; raises BodyMalformed for anything else."""
    items = list_member(members, name)
    if not all(type(item) is int and _I64_MIN <= item <= _I64_MAX for item in items):
        raise BodyMalformed(f"member {name!r} is not an array of 64-bit integers")
    return items


def text_map_member(members: Mapping[Any, Any], name: str) -> dict[str, str]:
    """Return an object whose values are all text; raises BodyMalformed for anything else."""
    content = map_member(members, name)
    if not all(type(key) is str and type(value) is str for key, value in content.items()):
        raise BodyMalformed(f"member {name!r} is not a map of texts")
    return content


def as_object(value: object, what: str) -> dict[Any, Any]:
    """Return `value`, an item of an array or map that must be an object."""
    if type(value) is not dict:
        raise BodyMalformed(f"{what} is not an object")
    return value
