"""Who is connected: the clients that have sent a heartbeat (RocketMQ: ClientChannelInfo).

One connection is one client. In the groups that it is a member of, and in the producer groups that it sends for, it is
known by its connection too, so that everything about it goes when the connection does.
"""

from __future__ import annotations

from collections.abc import Iterator

from reput_broker.request import Client
from reput_protocol.codes import LanguageCode


class ClientChannel:
    """One client, as its heartbeats tell it.

    `language` is a number of `LanguageCode`, `version` the client's own; `last_heartbeat` is on the clock of whoever
    registers it, in seconds. `consumer_groups` and `producer_groups` are kept by their tables: what the client is in,
    each with the bytes that are held for it.
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
        """About how many bytes are held for the groups that the client is in."""
        return sum(self.consumer_groups.values()) + sum(self.producer_groups.values())

    @property
    def language_name(self) -> str:
        """The language's name as RocketMQ's tools know it."""
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
        """Note a heartbeat and return the client.

        The connection must not belong to a client with another id: that one is `gone` first. An id that comes on a
        second connection belongs to that one from now on: its client has reconnected, and the end of the first
        connection has not been noticed yet.
        """
        channel = self._by_client.get(client)
        if channel is None:
            channel = self._by_client[client] = ClientChannel(client, client_id, language, version, now)
        else:
            assert channel.client_id == client_id, "the client before is gone first"
            channel.language, channel.version, channel.last_heartbeat = language, version, now
        self._by_id[client_id] = channel
        return channel

    def get(self, client: Client) -> ClientChannel | None:
        """Return the client behind a connection, None if it has sent no heartbeat."""
        return self._by_client.get(client)

    def find(self, client_id: str) -> ClientChannel | None:
        """Return the client with this id, None if it is not connected; of several the one heard of last."""
        return self._by_id.get(client_id)

    def gone(self, client: Client) -> ClientChannel | None:
        """Forget a connection that has ended; return the client that it was, if any."""
        channel = self._by_client.pop(client, None)
        if channel is not None and self._by_id.get(channel.client_id) is channel:
            del self._by_id[channel.client_id]
        return channel
