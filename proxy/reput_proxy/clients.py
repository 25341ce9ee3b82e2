"""The clients: their Telemetry streams, by which the proxy reaches them, and when they were heard."""

from __future__ import annotations

import asyncio
import math
import random
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from reput_proxy import messaging_pb2 as pb

_OUTBOX_MAX: Final = 64
"""Commands that wait for a client; further checks of transactions are dropped, and the broker repeats them."""
_HEARD_MAX: Final = 100_000
AWAY_S: Final = 45.0
"""After so long a client that is not heard counts as away. Heartbeats come every 10 s."""


ClientKey: TypeAlias = tuple[str, str]
"""User and client id: another user may choose the same id."""


@dataclass(slots=True, eq=False)
class Stream:
    """A Telemetry stream of a client.

    Attributes:
        outbox: what is to be written; None ends the stream.
        topics: what the client produces to.
    """

    client: ClientKey
    outbox: asyncio.Queue[pb.TelemetryCommand | None] = field(
        default_factory=lambda: asyncio.Queue(_OUTBOX_MAX)
    )
    topics: tuple[str, ...] = ()
    is_push_consumer: bool = False

    def post(self, command: pb.TelemetryCommand | None) -> bool:
        """Have a command written; False if too many wait."""
        try:
            self.outbox.put_nowait(command)
        except asyncio.QueueFull:
            return False
        return True


class ClientTable:
    """The clients: their streams, and when they were heard.

    Attributes:
        away_s: a client that has no stream, and was not heard for so long, is away.
    """

    def __init__(self) -> None:
        self.away_s = AWAY_S
        self._streams: set[Stream] = set()
        self._streams_of: dict[ClientKey, int] = {}
        """How many streams a client has; a new one may begin before the old one has ended."""
        self._heard_at: OrderedDict[ClientKey, float] = OrderedDict()
        """When clients have sent a heartbeat or a receive, the earliest first."""
        self._producers: dict[tuple[str, str], set[Stream]] = {}
        """By user and topic."""

    def __len__(self) -> int:
        return len(self._streams)

    def add(self, stream: Stream) -> None:
        """Take a new stream."""
        self._streams.add(stream)
        self._streams_of[stream.client] = self._streams_of.get(stream.client, 0) + 1

    def remove(self, stream: Stream) -> None:
        """Forget a stream that has ended."""
        self._streams.discard(stream)
        self._streams_of[stream.client] -= 1
        if not self._streams_of[stream.client]:
            del self._streams_of[stream.client]
        self.produces_to(stream, ())

    def is_there(self, client: ClientKey) -> bool:
        """Whether a client has a stream or was heard lately.

        RocketMQ's client for Python opens a stream that has ended only after minutes.
        """
        heard_at = self._heard_at.get(client, -math.inf)
        return client in self._streams_of or _now() - heard_at < self.away_s

    def heard(self, client: ClientKey) -> None:
        """Note a heartbeat or a receive, and forget clients that were not heard for long."""
        now = _now()
        self._heard_at[client] = now
        self._heard_at.move_to_end(client)
        while next(iter(self._heard_at.values())) < now - self.away_s or len(self._heard_at) > _HEARD_MAX:
            self._heard_at.popitem(last=False)

    def left(self, client: ClientKey) -> None:
        """Forget when a client was heard: it has said that it ends."""
        self._heard_at.pop(client, None)

    def produces_to(self, stream: Stream, topics: tuple[str, ...]) -> None:
        """Note the topics of a client, in place of those before."""
        user, _ = stream.client
        for topic in stream.topics:
            producers = self._producers[user, topic]
            producers.discard(stream)
            if not producers:
                del self._producers[user, topic]
        stream.topics = topics
        for topic in topics:
            self._producers.setdefault((user, topic), set()).add(stream)

    def ask_producer(self, user: str, topic: str, command: pb.TelemetryCommand) -> bool:
        """Send a command to any client of a user that produces to a topic; False without one that takes it."""
        producers = [*self._producers.get((user, topic), ())]
        random.shuffle(producers)
        return any(stream.post(command) for stream in producers)

    def end_all(self) -> None:
        """End all streams, so that the clients connect again, perhaps to another proxy."""
        for stream in self._streams:
            while not stream.post(None):
                stream.outbox.get_nowait()


def _now() -> float:
    return asyncio.get_running_loop().time()
