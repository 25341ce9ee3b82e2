"""Broker addresses, `host`, `host:port`, `[::1]:port`, or several separated by commas, and the broker at one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

DEFAULT_PORT = 10911


class Address(NamedTuple):
    """A broker's address and alternatives for it; `str()` returns `host:port`, several separated by commas."""

    host: str
    port: int
    others: tuple[Address, ...] = ()

    @property
    def each(self) -> tuple[Address, ...]:
        """All addresses to try, in order."""
        return (self._replace(others=()), *self.others)

    def __str__(self) -> str:
        first = f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
        return ",".join([first, *map(str, self.others)])


def parse_address(text: str, default_port: int = DEFAULT_PORT) -> Address:
    """Return the address that `text` names.

    Raises:
        ValueError: no host, a port outside 1 to 65535, or a URL.
    """
    text = text.strip()
    if "://" in text:
        rest = text.partition("://")[2]
        place = rest.partition("/")[0].rpartition("@")[2]
        raise ValueError(f"address {text!r} is a URL; write only its host and port: {place}")
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        port = rest.removeprefix(":")
    elif text.count(":") > 1:
        host, port = text, ""
    else:
        host, _, port = text.partition(":")
    if not host:
        raise ValueError(f"address {text!r} has no host; write host:port, such as 127.0.0.1:{default_port}")
    if not port:
        return Address(host, default_port)
    if not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65535):
        raise ValueError(f"address {text!r} has the port {port!r}; a port is a number from 1 to 65535")
    return Address(host, int(port))


def parse_addresses(addresses: str | Iterable[str], default_port: int = DEFAULT_PORT) -> tuple[Address, ...]:
    """Return the addresses in `"a:1,b:2"`, `"a:1;b:2"` or a list of such strings, in order, without duplicates.

    Raises:
        TypeError: it is neither, such as a port.
        ValueError: there is no address, or one cannot be parsed.
    """
    if isinstance(addresses, str):
        addresses = [addresses]
    elif not isinstance(addresses, Iterable):
        raise TypeError(f"a broker's address is a str, not {type(addresses).__name__}; pass host:port")
    parts = [part for text in addresses for part in text.replace(";", ",").split(",") if part.strip()]
    if not parts:
        raise ValueError("no broker address given; pass host:port")
    return tuple(dict.fromkeys(parse_address(part, default_port) for part in parts))


class BrokerIdentity(NamedTuple):
    """The broker at an address; `start_id`, if known, changes with every start."""

    name: str
    start_id: str | None

    def difference_from(self, expected: BrokerIdentity) -> str | None:
        """Return how it differs from `expected`, or None."""
        if self.name != expected.name:
            return f"broker {self.name!r} responds there, not {expected.name!r}"
        if expected.start_id is not None and self.start_id not in (None, expected.start_id):
            return (
                f"another broker of the name {self.name!r} answers there "
                f"(its start id is {self.start_id}, not {expected.start_id})"
            )
        return None
