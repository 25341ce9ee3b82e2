"""The value types of options, as pydantic types: durations, sizes, paths, ports, hosts, addresses, hours of the day.

A configuration file must give durations and sizes with their unit.
"""

from __future__ import annotations

import ipaddress
import re
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, PlainValidator
from pydantic.fields import FieldInfo

from reput_protocol.quantities import parse_duration, parse_size


def _to_duration(value: object) -> float:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, str):
        return parse_duration(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        raise ValueError(f'the unit is missing: write "{value}s" or "{value}ms"')
    raise ValueError(f'a duration such as "500ms" is needed, not {value!r}')


def _to_size(value: object) -> int:
    if isinstance(value, str):
        return parse_size(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ValueError(f'a size such as "4MiB" is needed, not {value!r}')


def hours_of_day(text: str) -> frozenset[int]:
    """Return the hours in `text`: numbers from 0 to 23, separated by semicolons (RocketMQ: deleteWhen).

    Raises:
        ValueError: it has none, or something else.
    """
    parts = [part.strip() for part in text.split(";")]
    if not all(part.isascii() and part.isdigit() and int(part) < 24 for part in parts):
        raise ValueError(f'hours from 00 to 23 are needed, such as "04" or "04;16", not {text!r}')
    return frozenset(map(int, parts))


def _to_hours(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f'hours such as "04" or "04;16" are needed, not {value!r}')
    hours_of_day(value)
    return value


def _to_directories(value: object) -> tuple[Path, ...]:
    if isinstance(value, str):
        value = value.split(",") if value.strip() else []
    if not isinstance(value, (list, tuple)) or not all(isinstance(item, (str, Path)) for item in value):
        raise ValueError(f'directories are needed, such as ["/disk1/log", "/disk2/log"], not {value!r}')
    items = [item.strip() if isinstance(item, str) else item for item in value]
    if "" in items:
        raise ValueError(f"a directory without a name is among {value!r}")
    return tuple(dict.fromkeys(Path(item) for item in items))


def _to_path(value: object) -> object:
    if value == "":
        raise ValueError('a directory is needed, such as "reput-data"; "." is the one the broker is started in')
    return Path(value) if isinstance(value, str) else value


def _to_port_choice(value: object) -> int | str:
    if value is None or value == "auto":
        return "auto"
    if value == "off":
        return "off"
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 65535:
        return value
    raise ValueError(f'a port from 0 to 65535, "auto" or "off" is needed, not {value!r}')


def _to_port_or_off(value: object) -> int | str:
    if value == "off" or (isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 65535):
        return value
    raise ValueError(f'a port from 0 to 65535 or "off" is needed, not {value!r}')


def _to_host_names(value: object) -> tuple[str, ...]:
    names = [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else value
    if not isinstance(names, (list, tuple)) or not all(
        isinstance(name, str) and re.fullmatch(r"[\w.-]+", name) for name in names
    ):
        raise ValueError(f'names without a port are needed, such as ["metrics.example.com"], not {value!r}')
    return tuple(name.lower() for name in names)


def checked_address(text: str) -> str:
    """Return `text` if it is `host:port`. Raises ValueError."""
    host, separator, port = text.rpartition(":")
    if (
        not separator
        or not host
        or not port.isascii()
        or not port.isdigit()
        or len(port) > 5
        or not 1 <= int(port) <= 65535
    ):
        raise ValueError(f'"host:port" is needed, such as "broker.example:10911", not {text!r}')
    if host in ("0.0.0.0", "[::]", "::"):
        raise ValueError(f"no program can connect to {host}; name an address at which it is reached")
    try:
        host.encode("idna")
    except UnicodeError:
        raise ValueError(f"{host!r} cannot be the name of a machine") from None
    return text


def is_address(text: str) -> bool:
    """Tell whether `text` is `host:port` (see `checked_address`)."""
    try:
        checked_address(text)
    except ValueError:
        return False
    return True


def _to_address(value: object) -> object:
    return checked_address(value) if isinstance(value, str) and value else value


def _to_addresses(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [part.strip() for part in re.split("[,;]", value)] if value.strip() else []
    if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):
        raise ValueError(f'addresses are needed, such as ["names1:9876", "names2:9876"], not {value!r}')
    return tuple(dict.fromkeys(checked_address(item) for item in value))


class _Unit(Enum):
    SECONDS = "duration"
    BYTES = "size"


Duration = Annotated[float, BeforeValidator(_to_duration), _Unit.SECONDS]
"""A field in seconds, written as `"500ms"`; code may also give a `datetime.timedelta`."""

Size = Annotated[int, BeforeValidator(_to_size), _Unit.BYTES]
"""A field in bytes, written as `"4MiB"`; code may also give an int."""


Directories = Annotated[tuple[Path, ...], BeforeValidator(_to_directories)]
"""Directories, written as a list or, as in RocketMQ, with commas between them; duplicates are dropped."""

HoursOfDay = Annotated[str, BeforeValidator(_to_hours)]
"""Hours of the day, written as `"04;16"`; `hours_of_day` reads them."""


DataPath = Annotated[Path, BeforeValidator(_to_path)]

HostNames = Annotated[tuple[str, ...], BeforeValidator(_to_host_names)]
"""Host names, written as a list or with commas between them, in lower case."""


def _to_networks(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",")] if value.strip() else []
    if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):
        raise ValueError(f'addresses are needed, such as ["10.0.0.7", "10.1.0.0/16"], not {value!r}')
    for item in value:
        try:
            ipaddress.ip_network(item)
        except ValueError as error:
            raise ValueError(f'an address such as "10.0.0.7" or "10.1.0.0/16" is needed: {error}') from None
    return tuple(dict.fromkeys(value))


Networks = Annotated[tuple[str, ...], BeforeValidator(_to_networks)]
"""IP addresses and networks, written as a list or with commas between them; duplicates are dropped."""


def _to_urls(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",")] if value.strip() else []
    if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):
        raise ValueError(f'URLs are needed, such as ["http://etcd1:2379", "http://etcd2:2379"], not {value!r}')
    for item in value:
        parts = urlsplit(item)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.query:
            raise ValueError(f'a URL such as "http://etcd1:2379" is needed, not {item!r}')
        if parts.username is not None:
            raise ValueError("a URL contains a user; give user and password their own options")
    return tuple(dict.fromkeys(value))


def public_url(url: str) -> str:
    """Return a URL as it may be shown: without its user and password, and its query, which may have a key."""
    parts = urlsplit(url)
    if not parts.hostname or (parts.username is None and not parts.query):
        return url
    user = "" if parts.username is None else "***@"
    return parts._replace(netloc=user + parts.netloc.rpartition("@")[2], query="***" if parts.query else "").geturl()


def _to_url(value: object) -> str:
    if value == "":
        return ""
    parts = urlsplit(value) if isinstance(value, str) else None
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname or not parts.path.strip("/"):
        raise ValueError(
            f'a URL with a path such as "http://collector:4318/v1/traces" is needed, not '
            f"{public_url(value) if isinstance(value, str) else value!r}"
        )
    return str(value)


Url = Annotated[str, BeforeValidator(_to_url)]
"""The URL of one resource; an empty text is none."""

Urls = Annotated[tuple[str, ...], BeforeValidator(_to_urls)]
"""URLs of servers, without a path, written as a list or with commas between them; duplicates are dropped."""

Address = Annotated[str, BeforeValidator(_to_address)]
"""`host:port`; an empty text is no address."""

Addresses = Annotated[tuple[str, ...], BeforeValidator(_to_addresses)]
"""Addresses, written as a list or, as in RocketMQ, with semicolons or commas between them; duplicates are dropped."""

PortChoice = Annotated[int | str, PlainValidator(_to_port_choice)]
PortOrOff = Annotated[int | str, PlainValidator(_to_port_or_off)]
Port = Annotated[int, Field(ge=0, le=65535)]


def is_duration(field: FieldInfo) -> bool:
    """Tell whether an option is a Duration."""
    return _Unit.SECONDS in field.metadata


def is_size(field: FieldInfo) -> bool:
    """Tell whether an option is a Size."""
    return _Unit.BYTES in field.metadata


_BODY_FORM = re.compile(r"[%|a-zA-Z0-9_*?-]+=(json|msgpack|avro:.+|protobuf:.+:.+|registry:https?://.+)", re.DOTALL)


def _to_body_forms(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",")] if value.strip() else []
    if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):
        raise ValueError(f'a list is needed, such as ["orders=avro:order.avsc"], not {value!r}')
    for item in value:
        if not _BODY_FORM.fullmatch(item):
            raise ValueError(
                f"{item!r} is not TOPIC=FORM with the form json, msgpack, avro:FILE, protobuf:FILE:MESSAGE or "
                "registry:URL"
            )
    return tuple(value)


BodyForms = Annotated[tuple[str, ...], BeforeValidator(_to_body_forms)]
"""Forms of bodies by topic, `TOPIC=FORM`, written as a list or with commas between them."""
