"""The connected clients: their settings, and the Telemetry streams by which the proxy reaches them."""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Final

from google.protobuf.duration_pb2 import Duration

from reput_protocol.commands.group import SubscriptionGroupConfig
from reput_protocol.names import check_client_group, check_topic
from reput_protocol.record.delays import DELAY_LEVELS_MS
from reput_proxy import messaging_pb2 as pb
from reput_proxy.call import Call
from reput_proxy.messages import BODY_BYTES_MAX, check_name, duration_of
from reput_proxy.receiving import WAIT_MAX_S
from reput_proxy.rejections import Code, Rejected, decoded, ok

_OUTBOX_MAX: Final = 64
"""Commands that wait for a client; further checks of transactions are dropped, and the broker repeats them."""
_TOPICS_MAX: Final = 1000
_HEARD_MAX: Final = 100_000
AWAY_S: Final = 45.0
"""A client that was not heard for so long, and has no stream, is away. Heartbeats come every 10 s."""
_RECEIVE_BATCH: Final = 32
_SEND_ATTEMPTS: Final = 3
_NODE_JS: Final = 8
"""Its number among the languages of clients."""


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


async def telemetry(
    call: Call, requests: AsyncIterator[pb.TelemetryCommand]
) -> AsyncIterator[pb.TelemetryCommand]:
    """Serve a Telemetry stream until the client, or the proxy, ends it."""
    call.check_client_id()
    clients = call.proxy.clients
    client = Client(call.client_id, call.user)
    clients.add(client)
    reader = asyncio.ensure_future(_read(call, client, requests))
    try:
        while (command := await client.outbox.get()) is not None:
            yield command
        if reader.done():
            reader.result()  # raises what the client has done wrong
    finally:
        reader.cancel()
        clients.remove(client)
        if client.is_push_consumer and not clients.is_there(client.key) and not call.proxy.draining:
            call.proxy.client_is_away(client.key)


async def _read(call: Call, client: Client, requests: AsyncIterator[pb.TelemetryCommand]) -> None:
    """Handle what a client writes; its answers to commands other than settings are ignored."""
    try:
        async for command in requests:
            if decoded(command).WhichOneof("command") == "settings":
                settings = await _settings(call, client, command.settings)
                await client.outbox.put(pb.TelemetryCommand(status=ok(), settings=settings))
    finally:
        client.post(None)


async def _settings(call: Call, client: Client, given: pb.Settings) -> pb.Settings:
    """Return a client's settings with what the proxy decides."""
    settings = pb.Settings()
    settings.CopyFrom(given)
    settings.metric.CopyFrom(pb.Metric(on=False))
    match given.WhichOneof("pub_sub"):
        case "publishing":
            topics = tuple(dict.fromkeys(topic.name for topic in given.publishing.topics))[:_TOPICS_MAX]
            for topic in topics:
                check_name(check_topic, topic, Code.ILLEGAL_TOPIC)
            call.proxy.clients.produces_to(client, topics)
            # Not awaited: with a broker that is away it would take seconds for each topic.
            call.proxy.spawn(call.upstream.transactions.producer_connected(topics))
            settings.backoff_policy.CopyFrom(
                pb.RetryPolicy(
                    max_attempts=_SEND_ATTEMPTS,
                    exponential_backoff=pb.ExponentialBackoff(
                        initial=duration_of(10), max=duration_of(1000), multiplier=2.0
                    ),
                )
            )
            settings.publishing.validate_message_type = True
            settings.publishing.max_body_size = BODY_BYTES_MAX
        case "subscription":
            group = given.subscription.group.name
            check_name(check_client_group, group, Code.ILLEGAL_CONSUMER_GROUP)
            client.is_push_consumer = given.client_type == pb.PUSH_CONSUMER
            config = await call.upstream.groups.get(group) or SubscriptionGroupConfig(group)
            settings.subscription.fifo = config.consume_message_orderly
            settings.subscription.receive_batch_size = _RECEIVE_BATCH
            settings.subscription.long_polling_timeout.CopyFrom(Duration(seconds=int(WAIT_MAX_S)))
            is_node = given.user_agent.language == _NODE_JS
            settings.backoff_policy.CopyFrom(retry_policy(config, only_exponential=is_node))
        case _:
            raise Rejected(Code.BAD_REQUEST, "settings are those of a producer or of a consumer")
    return settings


def retry_policy(config: SubscriptionGroupConfig, *, only_exponential: bool = False) -> pb.RetryPolicy:
    """Return when a group's messages are redelivered, by its setting `groupRetryPolicy`.

    RocketMQ's client for Node knows no list of delays, and makes a message that fails once a dead letter; it gets the
    delays that double from the first of the list to the last.
    """
    policy = pb.RetryPolicy(max_attempts=config.retry_max_times + 1)
    given = config.group_retry_policy
    if str(given.get("type")) == "EXPONENTIAL":
        steps: dict[str, Any] = given.get("exponentialRetryPolicy") or {}
        policy.exponential_backoff.initial.CopyFrom(duration_of(int(steps.get("initial", 5000))))
        policy.exponential_backoff.max.CopyFrom(duration_of(int(steps.get("max", 7_200_000))))
        policy.exponential_backoff.multiplier = float(steps.get("multiplier", 2))
    else:
        steps = given.get("customizedRetryPolicy") or {}
        delays = steps.get("next") or DELAY_LEVELS_MS
        if only_exponential:
            policy.exponential_backoff.initial.CopyFrom(duration_of(int(delays[0])))
            policy.exponential_backoff.max.CopyFrom(duration_of(int(delays[-1])))
            policy.exponential_backoff.multiplier = 2.0
            return policy
        policy.customized_backoff.next.extend(duration_of(int(delay)) for delay in delays)
    return policy


async def heartbeat(call: Call, request: pb.HeartbeatRequest) -> pb.HeartbeatResponse:
    """Answer Heartbeat. The stream says whether a client is there; any proxy answers, so that clients may change it."""
    call.proxy.clients.heard(call.client)
    if request.HasField("group"):
        check_name(check_client_group, request.group.name, Code.ILLEGAL_CONSUMER_GROUP)
    return pb.HeartbeatResponse(status=ok())


async def terminated(
    call: Call, request: pb.NotifyClientTerminationRequest
) -> pb.NotifyClientTerminationResponse:
    """Answer NotifyClientTermination: what a push consumer still has is given back, at the latest after a moment."""
    call.proxy.clients.left(call.client)
    call.proxy.client_is_away(call.client, after_s=0.0)
    return pb.NotifyClientTerminationResponse(status=ok())
