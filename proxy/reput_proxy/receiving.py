"""ReceiveMessage: pops for clients that wait.

All clients that receive the same messages, by group, topic, filter and order, share the notifications of the brokers,
so that a waiting client costs a task and no request.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from reput_client.consume.group.subscriptions import parse_topics
from reput_client.pop.popped import PoppedMessage
from reput_client.pop.popping import Popping, Wait
from reput_client.pop.settling import Settling
from reput_client.transport.session import Session
from reput_protocol.commands.pop import POP_MESSAGES_MAX
from reput_protocol.errors import ReputError
from reput_protocol.names import check_client_group, check_topic
from reput_proxy import messaging_pb2 as pb
from reput_proxy.messages import check_name, ms_of, timestamp_of, to_clients
from reput_proxy.rejections import Code, Rejected, ok, status

if TYPE_CHECKING:
    from reput_proxy.call import Call

INVISIBLE_MIN_MS: Final = 10_000
INVISIBLE_MAX_MS: Final = 12 * 3600 * 1000
WAIT_MIN_S: Final = 5.0
WAIT_MAX_S: Final = 20.0
_RESERVE_S: Final = 0.5
"""So long before the client's deadline an answer leaves."""
_AFTER_LAST_MESSAGE: Final = 1
"""Where a group without offsets begins, as with RocketMQ's proxy: `init_mode` of pops."""
_RECEIVERS_MAX: Final = 10_000
_GIVE_BACK_S: Final = 5.0


class Wanted(NamedTuple):
    """What a client receives."""

    group: str
    topic: str
    tags: str
    sql: str | None
    is_orderly: bool


class Receivers:
    """What the clients of one user receive by."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._poppings: OrderedDict[Wanted, Popping] = OrderedDict()
        self._waiting: dict[Popping, int] = {}

    async def receive(
        self, wanted: Wanted, max_messages: int, invisible_s: float, wait_s: float
    ) -> list[PoppedMessage]:
        """Return up to `max_messages` messages, none after `wait_s`. A cancelled call gives back what it has popped.

        Raises:
            FilterSyntaxError: the tags cannot be parsed.
            ReputError: as of `PopConsumer.receive`.
        """
        popping = self._popping(wanted)
        wait = Wait()
        until = self._session.runtime.now() + wait_s
        self._waiting[popping] = self._waiting.get(popping, 0) + 1
        popped = asyncio.ensure_future(popping.receive(PoppedMessage, max_messages, invisible_s, until, wait))
        popped.add_done_callback(lambda _: self._has_ended(popping))
        try:
            return await asyncio.shield(popped)
        except asyncio.CancelledError:
            # A pop that is under way cannot be taken back: its messages would be invisible with no client to have them.
            popping.interrupt(wait)
            popped.add_done_callback(self._give_back_of)
            raise

    def _popping(self, wanted: Wanted) -> Popping:
        popping = self._poppings.get(wanted)
        if popping is None:
            group, topic, tags, sql, is_orderly = wanted
            popping = Popping(
                self._session,
                parse_topics(group, topic, None, tags, sql, retries=False, version=0),
                Settling(self._session, group),
                start="earliest",
                wait_for_topic=True,
                deserializer=None,
                init_mode=_AFTER_LAST_MESSAGE,
            )
            popping.orderly = is_orderly
            self._poppings[wanted] = popping
            self._forget_idle()
        self._poppings.move_to_end(wanted)
        return popping

    def _has_ended(self, popping: Popping) -> None:
        self._waiting[popping] -= 1
        if not self._waiting[popping]:
            del self._waiting[popping]

    def _forget_idle(self) -> None:
        """Keep the number of receivers bounded: forget the ones that were used least recently."""
        if len(self._poppings) > _RECEIVERS_MAX:
            for wanted, popping in self._poppings.items():
                if popping not in self._waiting:
                    popping.forget()
                    del self._poppings[wanted]
                    return

    def _give_back_of(self, popped: asyncio.Future[list[PoppedMessage]]) -> None:
        if not popped.cancelled() and popped.exception() is None and popped.result():
            asyncio.ensure_future(self.give_back(popped.result()))  # noqa: RUF006  # it holds no state

    async def give_back(self, messages: list[PoppedMessage]) -> None:
        """Make messages that no client has got visible again; never raises."""
        for message in messages:
            with suppress(ReputError):
                await message.nack()

    def interrupt(self) -> None:
        """End all waits; the clients receive no messages."""
        for popping in self._poppings.values():
            popping.interrupt()

    def close(self) -> None:
        """End all waits and forget everything."""
        self.interrupt()
        for popping in self._poppings.values():
            popping.forget()
        self._poppings.clear()


# -- the request -------------------------------------------------------------------------------------------------------


async def receive(call: Call, request: pb.ReceiveMessageRequest) -> AsyncIterator[pb.ReceiveMessageResponse]:
    """Answer ReceiveMessage: a status, the messages, and when they were delivered."""
    group, topic = request.group.name, request.message_queue.topic.name
    check_group_and_topic(group, topic)
    invisible_ms = ms_of(request.invisible_duration)
    if request.auto_renew:
        call.check_client_id()
        call.proxy.clients.heard(call.client)
        invisible_ms = call.proxy.renewals.invisible_ms
    elif not INVISIBLE_MIN_MS <= invisible_ms <= INVISIBLE_MAX_MS:
        raise Rejected(
            Code.ILLEGAL_INVISIBLE_TIME,
            f"the invisible time is from {INVISIBLE_MIN_MS} to {INVISIBLE_MAX_MS} ms, not {invisible_ms}",
        )
    settings = await call.upstream.groups.get(group)
    tags, sql = filter_of(request.filter_expression)
    wanted = Wanted(group, topic, tags, sql, settings is not None and settings.consume_message_orderly)
    max_messages = min(max(request.batch_size, 1), POP_MESSAGES_MAX)
    receivers = call.upstream.receivers
    with call.proxy.waiting_receive():
        messages = await receivers.receive(wanted, max_messages, invisible_ms / 1000, _wait_s(call, request))
    sent = 0
    try:
        if request.auto_renew:
            call.proxy.renewals.add(call, group, messages)
        converted = to_clients(messages, request.message_queue.topic)
        yield pb.ReceiveMessageResponse(
            status=ok() if converted else status(Code.MESSAGE_NOT_FOUND, "no new message")
        )
        for message in converted:
            yield pb.ReceiveMessageResponse(message=message)
            sent += 1
        call.proxy.counters.received += sent
    except BaseException:
        # The client has gone; it may have got those that were written.
        call.proxy.renewals.forget(call, messages[sent:])
        await asyncio.shield(receivers.give_back(messages[sent:]))
        raise
    yield pb.ReceiveMessageResponse(delivery_timestamp=timestamp_of(call.now_ms()))


def check_group_and_topic(group: str, topic: str) -> None:
    """Check names; raises `Rejected`."""
    check_name(check_topic, topic, Code.ILLEGAL_TOPIC)
    check_name(check_client_group, group, Code.ILLEGAL_CONSUMER_GROUP)


def filter_of(expression: pb.FilterExpression) -> tuple[str, str | None]:
    """Return tags, and the SQL92 expression or None."""
    if expression.type == pb.SQL:
        return "*", expression.expression
    return expression.expression or "*", None


def _wait_s(call: Call, request: pb.ReceiveMessageRequest) -> float:
    """Return how long a receive waits: as the client asks, within bounds, and no longer than it waits itself.

    Raises:
        Rejected: its deadline leaves no time to wait.
    """
    remaining_s = call.remaining_s
    wait_s = remaining_s - _RESERVE_S
    if request.HasField("long_polling_timeout"):
        wait_s = ms_of(request.long_polling_timeout) / 1000
    wait_s = min(max(wait_s, WAIT_MIN_S), WAIT_MAX_S)
    if wait_s > remaining_s - _RESERVE_S:
        if remaining_s < WAIT_MIN_S:
            raise Rejected(
                Code.ILLEGAL_POLLING_TIME,
                f"the request ends in {remaining_s:.1f} s, and a receive waits {WAIT_MIN_S:.0f} s at least",
            )
        wait_s = remaining_s - _RESERVE_S
    return wait_s
