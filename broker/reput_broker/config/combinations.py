"""What options must keep to together: values that are right one by one and cannot work side by side."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

from reput_broker.config.errors import ConfigProblem
from reput_broker.config.units import format_size

if TYPE_CHECKING:
    from reput_broker.config.model import BrokerConfig

FRAME_OVERHEAD_BYTES = 65_536
"""Room for what travels with a body: 32 KiB of properties, the topic, the fields of record and header."""
_EVERY_ADDRESS = ("0.0.0.0", "::", "[::]")


class _Place(NamedTuple):
    """Where a listener is to be opened: by which option, at which address."""

    option: str
    host: str
    port: int
    is_auto: bool

    def collides_with(self, other: _Place) -> bool:
        """Whether both cannot be open at once; port 0 is another one each time."""
        same_host = self.host == other.host or self.host in _EVERY_ADDRESS or other.host in _EVERY_ADDRESS
        return bool(self.port) and self.port == other.port and same_host


def contradictions(config: BrokerConfig) -> list[ConfigProblem]:
    """Return what cannot work together in a configuration whose options are right one by one."""
    return [*_shared_ports(config), *_messages_beyond_frames(config)]


def _shared_ports(config: BrokerConfig) -> list[ConfigProblem]:
    problems = []
    for one, other in combinations(_places(config), 2):
        if one.collides_with(other):
            chosen, taken_by = (one, other) if other.is_auto else (other, one)
            auto = " (auto)" if taken_by.is_auto else ""
            text = (
                f"port {chosen.port} is that of {taken_by.option}{auto} already, and each needs one of its own; "
                f"choose another{'' if chosen.option == 'port' else ', 0 for a free one, or off for none'}"
            )
            problems.append(ConfigProblem(chosen.option, "code", text))
    return problems


def _places(config: BrokerConfig) -> list[_Place]:
    places = [_Place("port", config.host, config.port, is_auto=False)]
    name_port, http_port = config.name_port_to_open(), config.http_port_to_open(embedded=True)
    if name_port is not None:
        places.append(_Place("name_port", config.host, name_port, config.name_port == "auto"))
    if http_port is not None:
        places.append(_Place("http_port", config.http_host, http_port, config.http_port == "auto"))
    return places


def _messages_beyond_frames(config: BrokerConfig) -> list[ConfigProblem]:
    """A frame above the limit ends its connection, and the sender never learns why; so the limits must agree."""
    frame_size, body_size = config.limits.frame_size, config.store.message_size_max
    least = body_size + FRAME_OVERHEAD_BYTES
    if frame_size >= least:
        return []
    text = (
        f"{format_size(frame_size)} are too little for a message of store.message_size_max "
        f"({format_size(body_size)}) with its header and properties; raise it to {format_size(least)} or more, "
        "or lower store.message_size_max"
    )
    return [ConfigProblem("limits.frame_size", "code", text)]
