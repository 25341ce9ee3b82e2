"""The clients: their Telemetry streams, by which the proxy reaches them, when they were heard, and their messages.

A client settles a message by its receipt handle: the text of the broker's own (`PopHandle`) and the message's log
offset, so that any proxy can settle what another one has delivered.

A push consumer names no invisible time (`auto_renew`). The proxy takes a short one, so that the messages of a client
that dies are soon redelivered, and renews it until the client settles the message. Every renewal gives a new handle;
the client continues to use the one that it got.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from reput_client.errors import InvalidHandle
from reput_client.pop.popped import SPAN_MAX, PoppedMessage, Settling
from reput_protocol.commands.pop import PopHandle, marked_topic
from reput_protocol.errors import ReputError
from reput_protocol.record.message import MessageQueue
from reput_proxy import log
from reput_proxy import messaging_pb2 as pb
from reput_proxy.rejections import Code, Rejected

_OUTBOX_MAX: Final = 64
"""Commands that wait for a client; further checks of transactions are dropped, and the broker repeats them."""
_HEARD_MAX: Final = 100_000
AWAY_S: Final = 45.0
"""After so long a client that is not heard counts as away. Heartbeats come every 10 s."""


ClientKey: TypeAlias = tuple[str, str]
"""User and client id: another user may choose the same id."""
INVISIBLE_S: Final = 60.0
_AHEAD_S: Final = 20.0
"""How long before its end an invisible time is renewed."""
_RETRY_S: Final = 2.0
_TOTAL_MAX_S: Final = 3 * 3600.0
"""A message is not renewed for longer: its handler will never end."""
_HELD_MAX: Final = 200_000
"""Messages in the hands of all clients; further ones are redelivered when `INVISIBLE_S` ends."""
_AT_ONCE: Final = 64
_AFTER_CLIENT_S: Final = 1.0
"""After so long the messages of a client that leaves are redelivered."""


HeldKey: TypeAlias = tuple[ClientKey, str]
"""With the handle that the client got."""


@dataclass(slots=True, eq=False)
class Stream:
    """A Telemetry stream of a client.

    Attributes:
        outbox: what is to be written; None ends the stream.
        topics: what the client produces to.
    """

    client: ClientKey
    outbox: asyncio.Queue[pb.TelemetryCommand | None] = field(default_factory=lambda: asyncio.Queue(_OUTBOX_MAX))
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


class Delivery:
    """A message that a client has, by its handle; see `reput_client.pop.popped.Delivered`."""

    __slots__ = (
        "_handle",
        "_invisible_until",
        "broker_name",
        "group",
        "is_acknowledged",
        "is_given_back",
        "physical_offset",
        "topic",
    )

    def __init__(self, group: str, topic: str, handle: PopHandle, physical_offset: int) -> None:
        self.group = group
        self.topic = topic
        self.broker_name = handle.broker_name
        self.physical_offset = physical_offset
        self.is_acknowledged = False
        self.is_given_back = False
        self._handle = handle
        self._invisible_until = math.inf  # the broker decides

    @classmethod
    def parse(cls, group: str, topic: str, text: str) -> Delivery:
        """Return the message of a handle; raises `Rejected` if it is not one."""
        try:
            handle = PopHandle.parse(text)
            if not 0 <= handle.queue_offset - handle.start_offset < SPAN_MAX or handle.start_offset < 0:
                raise ValueError(f"offset {handle.queue_offset} of a pop from {handle.start_offset}")
            marked_topic(topic, group, handle.mark)
            last = text.split(" ")[8:9]
            return cls(group, topic, handle, int(last[0]) if last else -1)
        except ValueError as error:
            raise Rejected(Code.INVALID_RECEIPT_HANDLE, f"not a receipt handle of this proxy: {error}") from None

    @property
    def queue(self) -> MessageQueue:
        """The queue that it was popped from."""
        topic = marked_topic(self.topic, self.group, self._handle.mark)
        return MessageQueue(topic, self.broker_name, self._handle.queue_id)

    @property
    def invisible_until_ms(self) -> int:
        """When its invisible time ends, by the broker's clock."""
        return self._handle.pop_time + self._handle.invisible_time

    @property
    def receipt_handle(self) -> str:
        """The handle, as it is now."""
        return receipt_handle(self._handle, self.physical_offset)

    def __repr__(self) -> str:
        handle = self._handle
        return f"<delivery of {self.topic}/{handle.queue_id} at offset {handle.queue_offset} to {self.group}>"


def receipt_handle(handle: PopHandle, physical_offset: int) -> str:
    """Return the text that clients get."""
    return f"{handle} {physical_offset}"


@dataclass(slots=True, eq=False)
class _Held:
    key: HeldKey
    delivery: Delivery
    due_at: float
    since: float
    visible_at: float
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by what changes `delivery`."""


class _Lane(OrderedDict[HeldKey, _Held]):
    """Messages in the order in which they are due."""

    def __init__(self) -> None:
        super().__init__()
        self.wake = asyncio.Event()


class Renewals:
    """The messages of all push consumers, by client and the handle that it got.

    Args:
        is_there: whether a client is connected; the messages of others are not renewed.
        settling: returns what settles the messages of a user's group now; a new secret replaces the connections.
    """

    def __init__(self, is_there: Callable[[ClientKey], bool], settling: Callable[[str, str], Settling]) -> None:
        self._is_there = is_there
        self._settling = settling
        self.invisible_ms = round(INVISIBLE_S * 1000)
        self._invisible_s = INVISIBLE_S
        self._ahead_s = _AHEAD_S
        self._held: dict[HeldKey, _Held] = {}
        self._of_client: dict[ClientKey, dict[str, _Held]] = {}
        """By client and handle."""
        self._renewed = _Lane()
        self._failed = _Lane()
        """Those whose last renewal has failed: they are due again before others that were renewed earlier."""

    def has(self, client: ClientKey) -> bool:
        """Whether a client has messages."""
        return client in self._of_client

    def _put(self, held: _Held) -> None:
        client, handle = held.key
        self._held[held.key] = self._renewed[held.key] = held
        self._of_client.setdefault(client, {})[handle] = held
        self._renewed.wake.set()

    def _pop(self, key: HeldKey) -> _Held | None:
        held = self._held.pop(key, None)
        if held is not None:
            self._leave_lane(key)
            client, handle = key
            handles = self._of_client[client]
            del handles[handle]
            if not handles:
                del self._of_client[client]
        return held

    def _leave_lane(self, key: HeldKey) -> None:
        for lane in (self._renewed, self._failed):
            lane.pop(key, None)

    def __len__(self) -> int:
        return len(self._held)

    def add(self, client: ClientKey, group: str, messages: Iterable[PoppedMessage]) -> None:
        """Renew the invisible times of messages that a client gets."""
        now = asyncio.get_running_loop().time()
        for message in messages:
            if len(self._held) >= _HELD_MAX:
                log.warning("messages_not_renewed", held=_HELD_MAX, hint="their clients must settle them in time")
                return
            delivery = Delivery(group, message.topic, message._handle, message.physical_offset)
            key = (client, delivery.receipt_handle)
            due_at = now + self._invisible_s - self._ahead_s
            self._put(_Held(key, delivery, due_at, now, now + self._invisible_s))

    def forget(self, client: ClientKey, messages: Iterable[PoppedMessage]) -> None:
        """Do not renew messages that the client has not got."""
        for message in messages:
            handle = Delivery("", "", message._handle, message.physical_offset).receipt_handle
            self._pop((client, handle))

    @contextmanager
    def taking(self, client: ClientKey, group: str, topic: str) -> Iterator[Callable[[str], Awaitable[Delivery]]]:
        """Give the block a function that returns the message of a handle, which the client settles in the block.

        A message that is not settled when the block ends is renewed again, so that the client can try again. The
        function raises `Rejected` if it is not a handle.
        """
        taken: list[_Held] = []
        locked: list[asyncio.Lock] = []

        async def take(handle: str) -> Delivery:
            held = self._held.get((client, handle))
            if held is None or (held.delivery.group, held.delivery.topic) != (group, topic):
                return Delivery.parse(group, topic, handle)
            self._pop(held.key)
            taken.append(held)
            await held.lock.acquire()  # a renewal that is under way changes the handle
            locked.append(held.lock)
            return held.delivery

        try:
            yield take
        finally:
            for lock in locked:
                lock.release()
            for held in taken:
                if not (held.delivery.is_acknowledged or held.delivery.is_given_back):
                    held.due_at = asyncio.get_running_loop().time()
                    self._put(held)
                    self._renewed.move_to_end(held.key, last=False)

    async def give_back_all(self, client: ClientKey) -> None:
        """Give back what a client has, which is gone, so that other members get it soon."""
        left = [*self._of_client.get(client, {}).values()]
        for first in range(0, len(left), _AT_ONCE):
            await asyncio.gather(*map(self._give_back, left[first : first + _AT_ONCE]))

    async def _give_back(self, held: _Held) -> None:
        async with held.lock:
            if self._pop(held.key) is not held:  # the client has settled it meanwhile
                return
            try:
                await self._change(held, _AFTER_CLIENT_S)
            except InvalidHandle:
                return  # the client has acknowledged it through another proxy
            except ReputError as error:
                log.info("message_not_returned", message=repr(held.delivery), error=str(error))

    async def _change(self, held: _Held, invisible_s: float) -> None:
        user, _ = held.key[0]
        await self._settling(user, held.delivery.group).change(held.delivery, invisible_s)

    async def run(self) -> None:
        """Renew what is due, until cancelled."""
        await asyncio.gather(self._run(self._renewed), self._run(self._failed))

    async def _run(self, lane: _Lane) -> None:
        loop = asyncio.get_running_loop()
        while True:
            now = loop.time()
            due: list[_Held] = []
            for held in lane.values():
                if held.due_at > now or len(due) == _AT_ONCE:
                    break
                due.append(held)
            if due:
                await asyncio.gather(*map(self._renew, due))
                continue
            first = next(iter(lane.values()), None)
            lane.wake.clear()
            wait_s = None if first is None else first.due_at - now
            with suppress(TimeoutError):
                await asyncio.wait_for(lane.wake.wait(), wait_s)

    async def _renew(self, held: _Held) -> None:
        """Renew a message unless it is settled before its turn; never raises."""
        loop = asyncio.get_running_loop()
        async with held.lock:
            if self._held.get(held.key) is not held:
                return
            if not self._is_there(held.key[0]):
                self._pop(held.key)
                return
            if loop.time() - held.since > _TOTAL_MAX_S:
                log.warning("message_held_too_long", message=repr(held.delivery), held_s=_TOTAL_MAX_S)
                self._pop(held.key)
                return
            try:
                await self._change(held, self._invisible_s)
            except InvalidHandle:
                self._pop(held.key)
                return
            except ReputError as error:
                if loop.time() > held.visible_at:
                    log.info("message_not_renewed", message=repr(held.delivery), error=str(error))
                    self._pop(held.key)
                    return
                self._due(held, _RETRY_S, self._failed)
                return
            except Exception as error:  # a defect, which must not end the renewals of all other messages
                log.error("message_not_renewed", error, message=repr(held.delivery))
                self._pop(held.key)
                return
        held.visible_at = loop.time() + self._invisible_s
        self._due(held, self._invisible_s - self._ahead_s, self._renewed)

    def _due(self, held: _Held, after_s: float, lane: _Lane) -> None:
        """Make a message due again, after the same time as others of the lane, unless it was settled meanwhile."""
        if self._held.get(held.key) is held:
            self._leave_lane(held.key)
            held.due_at = asyncio.get_running_loop().time() + after_s
            lane[held.key] = held
            lane.wake.set()
