"""The attributes of topics and groups, and how a request changes them (RocketMQ: TopicAttributes, AttributeUtil)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from reput_broker.remoting.request import Refusal
from reput_protocol.commands.group import DEAD_LETTER, EXPIRED_ATTRIBUTE, PRIORITY_FACTOR_ATTRIBUTE
from reput_protocol.commands.topic import EXPIRING_ATTRIBUTE, GENERATION_ATTRIBUTE
from reput_protocol.errors import ErrorCode


class _Attribute(NamedTuple):
    values: tuple[str, ...]
    is_changeable: bool = True
    """False: it is chosen when the topic is created."""


TOPIC_ATTRIBUTES: Mapping[str, _Attribute] = {
    "cleanup.policy": _Attribute(("DELETE", "COMPACTION"), is_changeable=False),
    "message.type": _Attribute(
        ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY", "MIXED", "UNSPECIFIED")
    ),
    "queue.type": _Attribute(("SimpleCQ", "BatchCQ"), is_changeable=False),
    # -1: as long as the others. All topics are in one log, of which only whole files are deleted.
    "reserve.time": _Attribute(("-1",)),
    EXPIRING_ATTRIBUTE: _Attribute(("true",)),
}
"""What a topic may have, and the values that are served or refused for another reason (`why_not_kept`)."""
GROUP_ATTRIBUTES: Mapping[str, _Attribute] = {
    PRIORITY_FACTOR_ATTRIBUTE: _Attribute(tuple(map(str, range(101)))),
    EXPIRED_ATTRIBUTE: _Attribute(("drop", DEAD_LETTER)),
}


def parse_changes(text: str | None) -> dict[str, str]:
    """Return the values of `+name=value,-name` by name with sign (RocketMQ: AttributeParser). Raises Refusal."""
    changes: dict[str, str] = {}
    for part in filter(None, (text or "").split(",")):
        name, equals, value = part.partition("=")
        if name[0] not in "+-" or (name[0] == "+") != bool(equals) or name in changes:
            raise Refusal(
                ErrorCode.INVALID_ARGUMENT,
                f"attribute {part!r} is not understood; write +name=value or -name, and each name once",
            )
        changes[name] = value
    return changes


def changed_attributes(
    known: Mapping[str, _Attribute], before: Mapping[str, str] | None, changes: Mapping[str, str]
) -> dict[str, str]:
    """Return attributes after changes: `+name` sets, `-name` removes; a name without sign must be there already.

    Args:
        before: None if the topic or group is created.

    Raises:
        Refusal: an attribute or value is not known, or cannot be changed.
    """
    attributes, seen = dict(before or {}), set[str]()
    for signed, value in changes.items():
        name = signed[1:] if signed[:1] in ("+", "-") else signed
        if name in seen:
            raise Refusal(ErrorCode.INVALID_ARGUMENT, f"attribute {name!r} is named twice; name it once")
        seen.add(name)
        if signed == name:
            # A tool that has read the settings writes them back so.
            if attributes.get(name) != value:
                raise Refusal(
                    ErrorCode.INVALID_ARGUMENT,
                    f"attribute {name!r} has no sign; write +{name}=value or -{name}",
                )
        elif signed.startswith("-"):
            _check_removal(known, attributes, name)
            del attributes[name]
        elif attributes.get(name) != value:
            _check_value(known, before, name, value)
            attributes[name] = value
    return attributes


def _check_removal(known: Mapping[str, _Attribute], attributes: Mapping[str, str], name: str) -> None:
    if name not in attributes or name == GENERATION_ATTRIBUTE:
        raise Refusal(
            ErrorCode.INVALID_ARGUMENT, f"attribute {name!r} cannot be removed, because it is not set"
        )
    if name in known and not known[name].is_changeable:
        raise Refusal(
            ErrorCode.INVALID_ARGUMENT, f"attribute {name!r} cannot be removed: it is chosen at creation"
        )


def _check_value(
    known: Mapping[str, _Attribute], before: Mapping[str, str] | None, name: str, value: str
) -> None:
    if name not in known:
        names = ", ".join(known) or "none at all"
        raise Refusal(ErrorCode.INVALID_ARGUMENT, f"attribute {name!r} is not served; served here: {names}")
    values, is_changeable = known[name]
    if value not in values:
        raise Refusal(
            ErrorCode.INVALID_ARGUMENT, f"attribute {name}={value} is not served; values: {', '.join(values)}"
        )
    if before is not None and not is_changeable:
        raise Refusal(
            ErrorCode.INVALID_ARGUMENT, f"attribute {name!r} cannot be changed: it is chosen at creation"
        )
