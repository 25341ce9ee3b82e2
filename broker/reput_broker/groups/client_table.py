"""The clients that have sent a heartbeat (RocketMQ: ClientChannelInfo).

One connection is one client. Its groups refer to it by the connection too, so that everything about it is removed with
that.
"""

from __future__ import annotations

from collections.abc import Iterator

from reput_broker.request import Client
from reput_protocol.codes import LanguageCode


class ClientChannel:
    """One client, as its heartbeats describe it.

    `language` is a number of `LanguageCode`, `version` the client's own; `last_heartbeat` is in
    seconds of the registering table's clock. `consumer_groups` and `producer_groups` are kept by
    their tables: the client's groups, each with the bytes held for it.
    """

    __slots__ = (
        "client",
        "client_id",
        "consumer_groups",
        "language",
        "last_heartbeat",
        "producer_groups",
        "version",
    )

    def __init__(
        self, client: Client, client_id: str, language: int, version: int, last_heartbeat: float
    ) -> None:
        self.client = client
        self.client_id = client_id
        self.language = language
        self.version = version
        self.last_heartbeat = last_heartbeat
        self.consumer_groups: dict[str, int] = {}
        self.producer_groups: dict[str, int] = {}

    @property
    def held_bytes(self) -> int:
        """Approximate number of bytes held for the client's groups."""
        return sum(self.consumer_groups.values()) + sum(self.producer_groups.values())

    @property
    def language_name(self) -> str:
        """The language's name in RocketMQ's tools."""
        try:
            return LanguageCode(self.language).name
        except ValueError:
            return LanguageCode.OTHER.name

    def __repr__(self) -> str:
        return f"ClientChannel({self.client_id!r}, {self.client.peer!r})"


class ClientTable:
    """The clients by connection and by id."""

    def __init__(self) -> None:
        self._by_client: dict[Client, ClientChannel] = {}
        self._by_id: dict[str, ClientChannel] = {}

    def __len__(self) -> int:
        return len(self._by_client)

    def __iter__(self) -> Iterator[ClientChannel]:
        return iter(list(self._by_client.values()))

    def heard(self, client: Client, client_id: str, language: int, version: int, now: float) -> ClientChannel:
        """Record a heartbeat and return the client.

        The connection must not belong to another client id: `gone` is called first. An id on a second connection
        belongs to that one: the client has reconnected before the end of the first was noticed.
        """
        channel = self._by_client.get(client)
        if channel is None:
            channel = self._by_client[client] = ClientChannel(client, client_id, language, version, now)
        else:
            assert channel.client_id == client_id, "`gone` is called first"
            channel.language, channel.version, channel.last_heartbeat = language, version, now
        self._by_id[client_id] = channel
        return channel

    def get(self, client: Client) -> ClientChannel | None:
        """Return the client of a connection; None before its first heartbeat."""
        return self._by_client.get(client)

    def find(self, client_id: str) -> ClientChannel | None:
        """Return the connected client with this id, the latest of several; None if there is none."""
        return self._by_id.get(client_id)

    def gone(self, client: Client) -> ClientChannel | None:
        """Remove a closed connection; return its client, if any."""
        channel = self._by_client.pop(client, None)
        if channel is not None and self._by_id.get(channel.client_id) is channel:
            del self._by_id[channel.client_id]
        return channel
