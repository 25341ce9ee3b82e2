"""What pages are made from: a client of this broker with the rights of their user, and the parameters of a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from reput_broker.console.members import AskedCluster

if TYPE_CHECKING:
    from reput_broker.console.bodies import Bodies
    from reput_client.admin import Admin

ROWS_MAX = 1000
"""Rows of one table; a search finds those beyond."""


class InvalidQuery(Exception):
    """A parameter of a page is missing or invalid; the text says which, and what is valid."""


class Source(NamedTuple):
    """What a page has.

    Attributes:
        admin: a client of the broker that the page is about: this one, or another one of the cluster.
        at_ms: the time of this broker's clock.
        own_admin: a client of this broker.
        cluster: all brokers, asked with the rights of the page's user.
        bodies: what this broker's configuration says of messages; so does `serves_sql`.
    """

    admin: Admin
    at_ms: int
    own_admin: Admin
    cluster: AskedCluster
    bodies: Bodies
    serves_sql: bool


class Query:
    """The parameters of a page, checked."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def text(self, name: str, *, size_max: int = 1024, keeps_spaces: bool = False) -> str:
        """Return a text, "" if it is missing; without spaces at its ends, unless `keeps_spaces` is set."""
        value = self._values.get(name, "")
        if not isinstance(value, str):
            raise InvalidQuery(f"{name} is not a text")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InvalidQuery(f"{name} has half of a character") from None
        if len(value) > size_max:
            raise InvalidQuery(f"{name} has {len(value)} characters, and at most {size_max} are accepted")
        return value if keeps_spaces else value.strip()

    def members(self, name: str) -> Mapping[str, Any]:
        """Return an object, empty if it is missing."""
        value = self._values.get(name, {})
        if not isinstance(value, dict):
            raise InvalidQuery(f"{name} is not a JSON object")
        return value

    def flag(self, name: str) -> bool:
        """Return whether a flag is set: `true` in JSON."""
        value = self._values.get(name, False)
        if not isinstance(value, bool):
            raise InvalidQuery(f"{name} is {str(value)[:40]!r}, and must be true or false")
        return value

    def needed(self, name: str) -> str:
        """Return a text that is not empty."""
        value = self.text(name)
        if not value:
            raise InvalidQuery(f"{name} is missing")
        return value

    def signed(self, name: str, default: int) -> int:
        """Return a whole number, which may be negative."""
        return self.number(name, default, -(1 << 62), 1 << 62)

    def number(self, name: str, default: int, low: int = 0, high: int = (1 << 63) - 1) -> int:
        """Return a whole number within `[low, high]`."""
        value = self._values.get(name, "")
        if value == "":
            return default
        text = str(value)
        if isinstance(value, bool | float) or not text.lstrip("-").isdecimal() or not text.isascii():
            raise InvalidQuery(f"{name} is {text[:40]!r}, and a whole number is needed")
        number = int(text) if len(text) <= 20 else high + 1
        if not low <= number <= high:
            raise InvalidQuery(f"{name} is {text[:40]}, and must be within {low} and {high}")
        return number
