"""Where messages are from: elsewhere the same offsets are other messages."""

from __future__ import annotations

import re
from collections.abc import Iterator

from reput_client.arrow.urls import directory_of, is_remote, without_secret
from reput_client.transport.address import Address, parse_address
from reput_protocol.errors import ReputError


class OtherSource(ReputError):
    """An archive or a table has messages of another place."""

    def __init__(self, where: str, found: str, now: str, remedy: str = "") -> None:
        super().__init__(f"{where} is of {found}, not of {now}; name another directory{remedy}")


SAME_SOURCE = ", or, if that is the same place under another address, give --same-source"
"""What helps if a source may have got another address."""


def place_of(path: str) -> str:
    """Return the place of a store directory: its absolute path, or its URL without secrets."""
    if is_remote(path):
        return without_secret(path).partition("?")[0].rstrip("/")
    return str(directory_of(path).absolute())


def is_directory(place: str) -> bool:
    """Tell whether a place is a store directory, and not brokers: `broker.example:10911` is no URL."""
    return place.startswith("/") or ":/" in place


def is_same_source(before: str, now: str) -> bool:
    """Whether two sources are the same: a directory, or brokers of the same names.

    Each broker must have an address in common. The others may differ, since after a failover a member of the group may
    be away.
    """
    if before == now or is_directory(before) or is_directory(now):
        return before == now
    there, here = _brokers_in(before), _brokers_in(now)
    return there.keys() == here.keys() and all(there[name] & here[name] for name in there)


def _brokers_in(source: str) -> dict[str, set[Address]]:
    parts = (part.partition(" at ") for part in re.split(r", (?=\S+ at )", source))
    return {name: set(_addresses_in(text)) for name, _, text in parts}


def _addresses_in(text: str) -> Iterator[Address]:
    """Yield addresses between spaces; earlier versions also wrote them as `nameServer` was given."""
    for part in re.split(r"[\s,;]+", text):
        if part:
            yield parse_address(part)
