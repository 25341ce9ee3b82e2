"""The connected clients: their Telemetry streams, by which the proxy reaches them."""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from reput_proxy import messaging_pb2 as pb

_OUTBOX_MAX: Final = 64
"""Commands that wait for a client; further checks of transactions are dropped, and the broker repeats them."""
_HEARD_MAX: Final = 100_000
AWAY_S: Final = 45.0
"""A client that was not heard for so long, and has no stream, is away. Heartbeats come every 10 s."""


@dataclass(slots=True, eq=False)
class Client:
    """One Telemetry stream.

    Attributes:
        outbox: what is to be written; None ends the stream.
        topics: what the client produces to.
    """

    client_id: str
    user: str
    outbox: asyncio.Queue[pb.TelemetryCommand | None] = field(
        default_factory=lambda: asyncio.Queue(_OUTBOX_MAX)
    )
    topics: tuple[str, ...] = ()
    is_push_consumer: bool = False

    @property
    def key(self) -> tuple[str, str]:
        """User and id."""
        return self.user, self.client_id

    def post(self, command: pb.TelemetryCommand | None) -> bool:
        """Have a command written; False if too many wait."""
        try:
            self.outbox.put_nowait(command)
        except asyncio.QueueFull:
            return False
        return True


class ClientTable:
    """All clients with a Telemetry stream."""

    def __init__(self) -> None:
        self._clients: set[Client] = set()
        self._streams: dict[tuple[str, str], int] = {}
        """How many streams a client has; a new one may begin before the old one has ended."""
        self._heard_at: OrderedDict[tuple[str, str], float] = OrderedDict()
        """When clients have sent a heartbeat or a receive, the earliest first."""
        self._producers: dict[tuple[str, str], set[Client]] = {}
        """By user and topic."""

    def __len__(self) -> int:
        return len(self._clients)

    def add(self, client: Client) -> None:
        """Take a new stream."""
        self._clients.add(client)
        self._streams[client.key] = self._streams.get(client.key, 0) + 1

    def remove(self, client: Client) -> None:
        """Forget a stream that has ended."""
        self._clients.discard(client)
        self._streams[client.key] -= 1
        if not self._streams[client.key]:
            del self._streams[client.key]
        self.produces_to(client, ())

    def is_there(self, client: tuple[str, str]) -> bool:
        """Whether a client, by its user and id, has a stream or was heard lately.

        RocketMQ's client for Python opens a stream that has ended only after minutes.
        """
        return client in self._streams or client in self._heard_at

    def heard(self, client: tuple[str, str]) -> None:
        """Note a heartbeat or a receive, and forget clients that were not heard for long."""
        now = asyncio.get_running_loop().time()
        self._heard_at[client] = now
        self._heard_at.move_to_end(client)
        while next(iter(self._heard_at.values())) < now - AWAY_S or len(self._heard_at) > _HEARD_MAX:
            self._heard_at.popitem(last=False)

    def left(self, client: tuple[str, str]) -> None:
        """Forget when a client was heard: it has said that it ends."""
        self._heard_at.pop(client, None)

    def produces_to(self, client: Client, topics: tuple[str, ...]) -> None:
        """Note the topics of a client, in place of those before."""
        for topic in client.topics:
            producers = self._producers[client.user, topic]
            producers.discard(client)
            if not producers:
                del self._producers[client.user, topic]
        client.topics = topics
        for topic in topics:
            self._producers.setdefault((client.user, topic), set()).add(client)

    def ask_producer(self, user: str, topic: str, command: pb.TelemetryCommand) -> bool:
        """Send a command to any client of a user that produces to a topic; False without one that takes it."""
        producers = [*self._producers.get((user, topic), ())]
        random.shuffle(producers)
        return any(client.post(command) for client in producers)

    def end_all(self) -> None:
        """End all streams, so that the clients connect again, perhaps to another proxy."""
        for client in self._clients:
            while not client.post(None):
                client.outbox.get_nowait()
