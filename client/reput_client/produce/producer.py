"""Sending messages: one at a time, in blocks, many, or posted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final

from msgspec import UNSET

from reput_client.errors import (
    AckNotReached,
    PartlySent,
    PostsFailed,
    RegistryRefused,
    RegistryUnavailable,
    SchemaNotFound,
    SendOutcomeUnknown,
)
from reput_client.produce.accumulator import Accumulator
from reput_client.produce.block import OutgoingBlock, Terms
from reput_client.produce.block_sender import BlockSender
from reput_client.produce.contents import (
    Contents,
    Limits,
    SendOfMany,
    block_of,
    contents_of,
    contents_of_bodies,
    contents_of_one,
    texts_of,
)
from reput_client.produce.gathering import BUFFER_BYTES, Gathering
from reput_client.produce.presence import HEARTBEAT_INTERVAL_S, Presence
from reput_client.produce.puts import Putter, check_single
from reput_client.produce.queue_selector import FaultIsolation, QueueChoice, RoundRobin, choice_of, ordered
from reput_client.produce.request_reply import REPLY_TIMEOUT_S, PendingRequests, reply_to, send_reply
from reput_client.produce.traced import of_bodies, of_copy, of_message, of_messages, traced
from reput_client.produce.unique_ids import id_text_bytes, new_generator
from reput_client.receipts import OnDone, Posted, SendReceipt
from reput_client.received import ReceivedMessage
from reput_client.transport.client import Client
from reput_client.transport.options import ClientOptions, takes
from reput_protocol.buffers import Buffer
from reput_protocol.codes import Ack, AckLevel, MessageSysFlag
from reput_protocol.errors import InvalidMessage, ReputError
from reput_protocol.names import check_group, check_send_topic
from reput_protocol.properties import SHARDING_KEY, check_key
from reput_protocol.record.forwarding import forwarded_properties
from reput_protocol.record.message import NOT_SERIALIZED, Message, MessageQueue, checked_body
from reput_protocol.record.put_block import BLOCK_BYTES_MAX

log = logging.getLogger("reput_client")

SEND_TIMEOUT_S: Final = 30.0
"""A broker starts again, or another one takes over, in less."""
MANY_BATCH: Final = 1024
"""Messages in a block of `send_many`, unless `batch_bytes` is reached first."""

MANY_IN_FLIGHT: Final = 8

_STOP_S: Final = 5.0
_TERMS_MAX: Final = 64
_WITHIN_MAX_S: Final = 10 * 366 * 86_400.0
_LEVELS: Final[dict[str, AckLevel]] = {level.value: level for level in AckLevel}


@dataclass(frozen=True, kw_only=True)
class ProducerOptions(ClientOptions):
    """See `Producer`."""

    group: str = "reput-producer"
    serializer: Callable[[Any], Buffer] | None = None
    ack: Ack = AckLevel.FLUSHED
    timeout_s: float = SEND_TIMEOUT_S
    retries: int | None = None
    linger_s: float = 0.0
    batch_bytes: int = 1024 * 1024
    buffer_bytes: int = BUFFER_BYTES
    unique_ids: bool = True
    deduplicate: bool | None = None
    deduplicate_within_s: float | None = None
    create_topics: bool = True
    heartbeat_interval_s: float = HEARTBEAT_INTERVAL_S

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.retries or 0) < 0 or self.linger_s < 0:
            raise ValueError("retries and linger_s must not be negative")
        if self.deduplicate and not self.unique_ids:
            raise ValueError("deduplicate identifies messages by their unique ids; leave unique_ids on")
        if not 0 < (1.0 if self.deduplicate_within_s is None else self.deduplicate_within_s) <= _WITHIN_MAX_S:
            raise ValueError(f"deduplicate_within_s must be more than 0, and {_WITHIN_MAX_S:.0f} at most")
        if self.heartbeat_interval_s <= 0:
            raise ValueError("heartbeat_interval_s must be more than 0")
        if not 1 <= self.batch_bytes <= BLOCK_BYTES_MAX:
            raise ValueError(f"batch_bytes must be 1 to {BLOCK_BYTES_MAX}, not {self.batch_bytes}")
        if self.buffer_bytes < self.batch_bytes:
            raise ValueError(f"buffer_bytes must be at least batch_bytes ({self.batch_bytes}), not {self.buffer_bytes}")


class Producer(Client):
    """Sends messages to the topics of a broker or cluster.

    An async context manager for trio and asyncio, shared by any number of tasks. It owns a task only while posted
    messages are unfinished, one for each attempt to reconnect, and from the first `request` on one for heartbeats.
    Cancelling a send leaves the producer usable; closing it ends the sends in progress with `ClientClosed`.

    Args:
        address: `host:port` of a broker, several separated by commas, or a list of them.
        group: the producer group, shown by the broker.
        serializer: returns the body of messages that are sent with a `value`, such as `Json(Order).serialize`. A type
            checker does not compare the values with it.
        ack: the default acknowledgement level: `page_cache` (survives the broker process), `flushed` (survives the
            machine) or `replicated`.
        timeout_s: seconds a send may take, including connecting and all repetitions.
        retries: how often a send is repeated when its outcome is unknown, the ack level was not reached or the broker
            is busy; None: until `timeout_s` is over. 0: never. Without `deduplicate`, None repeats only what was
            certainly not stored, and a number also what may be stored then twice. `send_many` repeats nothing.
        deduplicate: make the broker store a repeated message once, by topic and unique id, within its `dedup.window`; a
            duplicate is answered with the first receipt. By default on, if there are unique ids. True also takes a
            message whose `unique_id` the application has set for the same one from any producer: it is looked up at
            each send.
        deduplicate_within_s: seconds for which the broker recognises messages of this producer, if that is more than
            its `dedup.window`.
        create_topics: whether a message to a topic that does not exist creates it, where the broker allows that
            (`topics.auto_create`). If not, sends to it raise `TopicNotFound`.
        linger_s: seconds a `send` waits at most for others to share a block with; blocks of several queues leave
            together. With 0 it leaves at once, or, while two blocks are unanswered, with the others that come until one
            of them is answered. Posted messages wait as long, or 5 ms if it is 0.
        batch_bytes: maximum size of a block, at most 8 MiB.
        buffer_bytes: maximum bytes of unfinished posted or lingering messages; further ones wait for room.
        unique_ids: write a `UNIQ_KEY` into every message; without it a message has only its offset id.
        heartbeat_interval_s: seconds between heartbeats, if any; well below the broker's `groups.heartbeat_timeout`.

    Raises:
        ValueError: an argument is out of range.
        InvalidName: the group's name is not valid.
    """

    @takes(ProducerOptions)
    def __init__(self, options: ProducerOptions) -> None:
        self._begin(options)

    def _begin(self, options: ProducerOptions) -> None:
        self.group = check_group(options.group)
        super().__init__(options)
        self._options = options
        self._ack = AckLevel(options.ack)
        marks = options.unique_ids if options.deduplicate is None else options.deduplicate
        self._putter = Putter(
            self.group,
            deduplicate=marks,
            knows_ids=bool(options.deduplicate),
            within_s=options.deduplicate_within_s,
            creates_topics=options.create_topics,
        )
        self._session.creates_topics = options.create_topics
        self._selector = RoundRobin()
        self._faults = FaultIsolation(lambda: self._session.runtime.now())
        self._ids = new_generator() if options.unique_ids else None
        self._send_terms: dict[tuple[Ack | None, float | None], Terms] = {}
        self._post_terms = {
            level: self._terms(level, None, retries=options.retries, is_bulk=True, is_divisible=self._putter.knows_ids)
            for level in AckLevel
        }
        accumulator = Accumulator(
            self._session.routes,
            self._ids,
            known_apart=self._putter.knows_ids,
            block_bytes=options.batch_bytes,
            held_max=options.buffer_bytes,
        )
        self._presence = Presence(self._session, self.group, options.heartbeat_interval_s)
        self._sender = BlockSender(
            self._session,
            self._putter,
            accumulator,
            self._selector,
            self._faults,
            self._ids,
            options.new_backoff,
            self._presence,
        )
        self._gathering = Gathering(self._session, accumulator, self._sender, linger_s=options.linger_s)
        self._requests = PendingRequests(self._session)

    @property
    def client_id(self) -> str:
        """The id that brokers know this producer by; empty until needed."""
        return self._presence.client_id

    @property
    def late_replies(self) -> int:
        """How many replies came after their request timed out."""
        return self._requests.late_replies

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Flush what was posted, and close.

        Also flushes if the block raises or ends by `sys.exit()`. If it is cancelled or ends by a `KeyboardInterrupt`,
        unsent messages fail as with `aclose`, which logs their number.

        Raises:
            PostsFailed: messages failed and this was not reported yet; only logged if the block raises already.
        """
        try:
            await self._flush_at_exit(error)
        finally:
            await self.aclose()

    async def _flush_at_exit(self, error: BaseException | None) -> None:
        """Flush as the first half of `__aexit__`."""
        if error is None:
            await self._gathering.flush()
        elif isinstance(error, (Exception, SystemExit)):
            try:
                await self._gathering.flush()
            except PostsFailed as failed:
                log.error("the block that used a producer has ended by %r, and: %s", error, failed)

    async def aclose(self) -> None:
        """Close the connections. Sends in progress and posted messages fail: `ClientClosed`, `SendOutcomeUnknown`.

        To have posted messages stored, call `flush` first, or leave the `async with` block.
        """
        self._requests.close()
        try:
            if self._presence.client_id and not self._session.closed:
                await self._session.runtime.shielded(2 * _STOP_S, self._leave)
        finally:
            self._session.close()
            self._gathering.close()
            await self._session.runtime.shielded(_STOP_S, self._gathering.ended)

    async def _leave(self) -> None:
        await self._presence.leave()
        await self._presence.stop(_STOP_S)

    async def send(
        self,
        message: Message,
        *,
        ack: Ack | None = None,
        queue_id: int | None = None,
        ordering_key: str | None = None,
        timeout_s: float | None = None,
    ) -> SendReceipt:
        """Send one message and return its receipt once the ack level is reached.

        A delayed message does not linger; its receipt's offsets and offset message id are those of the waiting record,
        not of the one that consumers get.

        Args:
            ack: the level for this message; the producer's own if None.
            queue_id: the queue; otherwise chosen by `ordering_key`; otherwise round robin.
            ordering_key: messages with the same one go to the same queue and stay in order; consumers see it as
                `ReceivedMessage.ordering_key`. (`Message.keys` are for looking messages up.)

        Raises:
            SendOutcomeUnknown: the frame left and no answer came; the message may be stored.
            AckNotReached: stored, but the level was not reached in time, so that a failover or a power cut may lose it;
                carries the receipt. With `deduplicate` the send is repeated first, as often as `retries` says.
            BrokerError: refused, with the reason as the subclass; not stored.
            ConnectFailed, RequestTimeout, ClientClosed, InvalidMessage: not sent.
        """
        if getattr(message, "body", NOT_SERIALIZED) is NOT_SERIALIZED:  # or it is no message
            message = self._serialized(message)
        if ordering_key is not None:
            message = ordered(message, ordering_key)
        terms = self._send_terms.get((ack, timeout_s)) or self._terms_of_sends(ack, timeout_s)
        choice = choice_of(queue_id, ordering_key, message.delay)
        if self._tracing is not None:
            with self._tracing.sending(message) as sending:
                receipt = await self._gathering.send(sending.injected(message), terms, choice)
                sending.end(receipt)
                return receipt
        return await self._gathering.send(message, terms, choice)

    @traced(of_copy)
    async def forward(
        self,
        message: ReceivedMessage,
        topic: str,
        *,
        properties: Mapping[str, str] | None = None,
        unique_id: str | None = None,
        ack: Ack | None = None,
        queue_id: int | None = None,
        ordering_key: str | None = None,
        timeout_s: float | None = None,
    ) -> SendReceipt:
        """Send a received message to another topic, or again to its own.

        The copy has the stored body, compressed or not, and the flag, tag, keys and properties, but a new unique id and
        none of the properties that brokers and consumers added (see `forwarding.py`).

        Args:
            properties: additional or replaced properties.
            unique_id: of the copy; by default one that the producer generates.
            ack, queue_id, ordering_key, timeout_s: as for `send`.

        Raises:
            DamagedMessage: the message fails its checksum; nothing was sent.
            ReputError: as for `send`.
        """
        check_send_topic(topic)
        if unique_id is not None:
            check_key(unique_id, "unique_id")
        if ordering_key is not None:
            properties = {**(properties or {}), SHARDING_KEY: ordering_key}
        body, text = message.raw_body, forwarded_properties(message.properties, unique_id, properties or {})
        check_single(topic, len(body), len(text) + (0 if unique_id else id_text_bytes(self._ids)))
        own_ids = {} if unique_id is None else {0: unique_id}
        sys_flag = message.sys_flag & MessageSysFlag.PUT_MASK
        copies = Contents(topic, [body], [text], [message.flag], own_ids, sys_flag=sys_flag)
        terms = self._terms_of_sends(ack, timeout_s)
        block = await self._deliver(copies, terms, choice_of(queue_id, ordering_key))
        return block.outcome(0)

    @traced(of_message)
    async def send_oneway(
        self,
        message: Message,
        *,
        queue_id: int | None = None,
        ordering_key: str | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Send one message without an answer, for messages that may be lost, such as measurements.

        Returns when the system has taken the message; whether the broker stored or refused it is unknown. Messages to
        one queue are stored in the order of sending. It does not linger.

        Raises:
            ConnectFailed, RequestTimeout, ClientClosed, InvalidMessage: not sent.
            BrokerError: the topic cannot be sent to.
            SendOutcomeUnknown: the connection ended when part of the message had left.
        """
        message = ordered(self._serialized(message), ordering_key)
        [contents] = contents_of([message], self._limits(1))
        terms = self._terms(AckLevel.PAGE_CACHE, timeout_s, is_oneway=True)
        await self._deliver(contents, terms, choice_of(queue_id, ordering_key))

    @traced(of_message)
    async def request(
        self,
        message: Message,
        *,
        timeout_s: float | None = None,
        ack: Ack | None = None,
        queue_id: int | None = None,
        ordering_key: str | None = None,
    ) -> ReceivedMessage:
        """Send one message and return the reply of a consumer of its topic (see `reply`).

        Any number of requests may wait at a time. The first one registers the producer with the broker, by heartbeats.
        A request is never sent twice, whatever `retries` is.

        Args:
            timeout_s: for the whole request; the producer's own if None.
            ack, queue_id, ordering_key: as for `send`.

        Raises:
            ReplyTimeout: no reply in time; has topic and correlation id. A later reply is dropped and counted.
            BrokerError: refused, with the reason as the subclass; not stored.
            ConnectFailed, RequestTimeout, InvalidMessage: not sent.
            ClientClosed: the producer was closed meanwhile.
        """
        message = ordered(self._serialized(message), ordering_key)
        terms = self._terms(ack, timeout_s, is_personal=True)
        deadline = self._session.deadline(terms.timeout_s)
        client_id = self._presence.identify()
        with self._requests.pending(client_id, terms.timeout_s) as pending:
            # As a 310: only then does the broker add CLUSTER, by which RocketMQ's clients find the reply topic.
            contents = contents_of_one(message, id_text_bytes(self._ids), pending.properties, sys_flag=0)
            is_stored = True
            try:
                await self._deliver(contents, terms, choice_of(queue_id, ordering_key))
            except AckNotReached as error:
                log.info("request %s: %s", pending.correlation_id, error)
            except SendOutcomeUnknown as error:
                log.info("request %s: %s", pending.correlation_id, error)
                is_stored = False
            return await self._requests.reply_to(pending, deadline, message.topic, is_stored=is_stored)

    @traced(of_copy)
    async def reply(
        self,
        request: ReceivedMessage,
        body: Buffer | None = None,
        *,
        value: Any = UNSET,
        tag: str | None = None,
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
        timeout_s: float = REPLY_TIMEOUT_S,
    ) -> None:
        """Reply to a received request (`request.wants_reply`); returns when the requester's client has the reply.

        Whether the request still waits there is not reported.

        Args:
            value: instead of `body`, what the producer's `serializer` takes.

        Raises:
            InvalidMessage: the message is not a request, or the reply cannot be sent; not sent.
            RequesterGone: the requester is not connected any more.
            BrokerBusy: the requester has not answered, or accepts no more for now; `retryable`.
            BrokerError: refused for another reason, with the reason as the subclass.
            ConnectFailed, RequestTimeout: it is unknown whether it has arrived.
        """
        message = reply_to(request, body, value=value, tag=tag, keys=keys, properties=properties, flag=flag)
        message = self._serialized(message)
        unique_id = None if self._ids is None else self._ids.next()
        deadline = self._session.deadline(timeout_s)
        await send_reply(self._session, self.group, message, unique_id, request.broker_name, deadline)

    @traced(of_messages)
    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        ack: Ack | None = None,
        queue_id: int | None = None,
        ordering_key: str | None = None,
        timeout_s: float | None = None,
    ) -> list[SendReceipt]:
        """Send messages of one topic to one queue, in order, in blocks; return their receipts in order.

        Each block is stored whole or not at all and acknowledged before the next is sent, so the stored messages are
        always a prefix of `messages`. `timeout_s` counts for each block. A delayed message is a block of its own;
        `post` is faster for many of them.

        Raises:
            InvalidMessage: the messages are of several topics, or one cannot be sent; nothing was sent.
            PartlySent: a later block failed; `receipts` has those of the blocks before.
            AckNotReached: as for `send`; its receipts include those of the blocks before.
            ReputError: as for `send`: the first block failed.
        """
        if not messages:
            return []
        topic = messages[0].topic
        for message in messages:
            if message.topic != topic:
                raise InvalidMessage(
                    f"a batch is of one topic, not of {topic!r} and {message.topic!r}; send one batch for each"
                )
        each_contents = list(
            contents_of(
                (ordered(self._serialized(message), ordering_key) for message in messages), self._limits(len(messages))
            )
        )
        terms = self._terms(ack, timeout_s, retries=self._options.retries)
        choice = choice_of(queue_id, ordering_key)
        receipts: list[SendReceipt] = []
        try:
            for contents in each_contents:
                block = await self._deliver(contents, terms, choice)
                assert block.receipts is not None, "what is done without an error is stored"
                receipts += block.receipts
                choice = block.queue  # the first block may have gone to any broker; the others follow it
        except AckNotReached as error:
            error.receipts[:0] = receipts
            raise
        except ReputError as error:
            if not receipts:
                raise
            padding: list[SendReceipt | None] = [None] * (len(messages) - len(receipts))
            raise PartlySent([*receipts, *padding], {len(receipts): error}) from error
        return receipts

    @traced(of_bodies)
    async def send_many(
        self,
        topic: str,
        bodies: Iterable[Buffer] | None = None,
        *,
        values: Iterable[Any] | None = None,
        tag: str | None = None,
        tags: Sequence[str | None] | None = None,
        keys: Sequence[Sequence[str]] | None = None,
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
        batch: int = MANY_BATCH,
        in_flight: int = MANY_IN_FLIGHT,
        ack: Ack | None = None,
        queue_id: int | None = None,
        ordering_key: str | None = None,
        timeout_s: float | None = None,
    ) -> Sequence[SendReceipt]:
        """Send a message of `topic` for each body, in blocks, several in flight; return their receipts in order.

        Stores what `send` would, at a fraction of the cost: no `Message` is created, and a receipt only on access. Each
        block is stored whole or not at all. Messages to one queue
        are stored in order. `timeout_s` is how long the broker may be silent. Nothing is sent again: see `post`.

        Args:
            bodies: may be an iterator, which is read as blocks are sent, unless `tags` or `keys` are given. A body must
                not change before the call returns.
            values: instead of bodies, what the producer's `serializer` takes.
            tag, properties, flag: of every message.
            tags: instead of `tag`: the tag of each message, or None.
            keys: the keys of each message.
            batch: maximum messages in a block; the producer's `batch_bytes` also applies.
            in_flight: maximum unanswered blocks.
            ack, queue_id, ordering_key: as for `send`.

        Raises:
            InvalidName, InvalidMessage: topic, tag, keys or properties cannot be sent; nothing was.
            PartlySent: a message failed; later ones were sent only if already in flight.
            ReputError: the first message could not be sent; nothing was.
        """
        if in_flight < 1 or batch < 1:
            raise ValueError(f"batch and in_flight must be at least 1, not {batch} and {in_flight}")
        if (bodies is None) == (values is None):
            raise ValueError("send_many takes either bodies or values=")
        items: Iterable[Any] = bodies if values is None else values  # type: ignore[assignment]  # one is given
        if ordering_key is not None:
            properties = {**(properties or {}), SHARDING_KEY: ordering_key}
        count = 0
        if tags is not None or keys is not None:
            items = list(items)
            count = len(items)
        texts = texts_of(topic, count, id_text_bytes(self._ids), tag, tags, keys, properties, flag)
        serialize = None if values is None else self._serialize
        each_contents = contents_of_bodies(topic, items, texts, flag, self._limits(batch), serialize)
        choice = choice_of(queue_id, ordering_key)
        terms = self._terms(ack, timeout_s, is_bulk=True)
        return await self._send_of_many(terms, in_flight, choice).run(each_contents)

    async def post(
        self,
        message: Message,
        *,
        ack: Ack | None = None,
        queue_id: int | None = None,
        ordering_key: str | None = None,
        on_done: OnDone | None = None,
    ) -> Posted:
        """Add one message to a block and return; it is sent and acknowledged later (docs/client.md, post).

        A block is sent when its first message has waited `linger_s`, when another message comes and it has
        `batch_bytes` or 1,024 messages, or by `flush`. `post` waits for the route of a new topic, for room in
        `buffer_bytes`, and briefly whenever a block is full, so that other tasks run. Messages to one queue are stored
        in the order of posting, also those that `retries` sends again; a block that fails, with all its messages, does
        not hold up later ones. A message reported as `SendOutcomeUnknown` may still be stored, later and behind others.
        Without `queue_id` or `ordering_key` the blocks go round robin to the queues, except those of brokers that lag.

        `await` the result for the outcome. Failures not reported by that or by `on_done` are raised by the next `flush`
        or at the end of the `async with` block.

        Args:
            message: a delayed one gets a block of its own. A body that is not `bytes` is copied.
            ack, queue_id, ordering_key: as for `send`.
            on_done: called with the result when it is done, in the producer's task. It must be quick; exceptions are
                logged.

        Raises:
            InvalidMessage: it cannot be sent.
            RequestTimeout: there was no room for `timeout_s` seconds.
            TopicNotFound, NoQueue, BrokerNotFound, ConnectFailed, ClientClosed: it was not taken either.
        """
        if getattr(message, "body", NOT_SERIALIZED) is NOT_SERIALIZED:  # or it is no message
            message = self._serialized(message)
        if ordering_key is not None:
            message = ordered(message, ordering_key)
        terms = self._post_terms[self._ack if ack is None else _LEVELS.get(ack) or AckLevel(ack)]
        gathering, choice = self._gathering, choice_of(queue_id, ordering_key, message.delay)
        if self._tracing is not None:
            with self._tracing.sending(message) as sending:
                message = sending.injected(message)
                posted = gathering.take(message, terms, choice, on_done) or await gathering.post(
                    message, terms, choice, on_done
                )
                sending.of_posted(posted)
                return posted
        return gathering.take(message, terms, choice, on_done) or await gathering.post(message, terms, choice, on_done)

    async def flush(self) -> None:
        """Send at once what was posted; return when all of it is done and its callbacks were called.

        Every message gets done: it has `timeout_s` to leave and `timeout_s` to be answered, for each repetition.

        Raises:
            PostsFailed: messages failed and this was not reported yet.
        """
        await self._gathering.flush()

    def _report_interrupted(self) -> None:
        """In the synchronous API, after an interrupt has closed the producer: call the remaining callbacks.

        Raises:
            PostsFailed: as `flush`; unanswered messages have an unknown outcome.
        """
        self._gathering.report_interrupted()

    def _after_fork(self) -> None:
        """In a forked child: abandon the parent's connections and posts, and generate own ids."""
        if self._ids is not None:
            self._ids = new_generator()
        self._gathering.forget(self._ids)
        self._session.after_fork()
        self._presence.forget()
        self._requests.forget()

    # -- inside ------------------------------------------------------------------------------------------------

    def _limits(self, messages: int) -> Limits:
        return Limits(messages, self._options.batch_bytes, id_text_bytes(self._ids))

    def _terms(
        self,
        ack: Ack | None,
        timeout_s: float | None,
        *,
        retries: int | None = 0,
        is_bulk: bool = False,
        is_divisible: bool = False,
        is_oneway: bool = False,
        is_personal: bool = False,
    ) -> Terms:
        level = self._ack if ack is None else AckLevel(ack)
        timeout_s = self._session.timeout_s if timeout_s is None else timeout_s
        return Terms(level, timeout_s, retries, is_bulk, is_divisible, is_oneway, is_personal)

    def _terms_of_sends(self, ack: Ack | None, timeout_s: float | None) -> Terms:
        terms = self._terms(ack, timeout_s, retries=self._options.retries, is_divisible=True)
        if len(self._send_terms) < _TERMS_MAX:
            self._send_terms[ack, timeout_s] = terms
        return terms

    async def _deliver(self, contents: Contents, terms: Terms, choice: QueueChoice) -> OutgoingBlock:
        """Send messages as one block, and return that; see `BlockSender.deliver`."""
        block = await self._block_for(contents, terms, choice)
        await self._sender.deliver(block)
        return block

    async def _block_for(self, contents: Contents, terms: Terms, choice: QueueChoice) -> OutgoingBlock:
        """Return the block of these messages, whose time has begun. A chosen queue needs no route."""
        started_at = self._session.runtime.now()
        if isinstance(choice, MessageQueue):
            queue = choice
        else:
            route = await self._session.publish_route(contents.topic, started_at + terms.timeout_s)
            queue = self._sender.choose(route, choice)
        block = block_of(contents, queue, terms, is_free=choice is None)
        block.since = started_at
        return block

    def _send_of_many(self, terms: Terms, in_flight: int, choice: QueueChoice) -> SendOfMany:
        return SendOfMany(self._session, self._sender, terms, in_flight, choice)

    def _serialized(self, message: Message) -> Message:
        """Return the message with the body for its value, or itself if it has a body.

        Raises:
            InvalidMessage: there is no serializer, or it raised an exception, which is the cause; or it is no message.
        """
        if not hasattr(message, "body"):
            raise InvalidMessage(
                f"a producer sends a Message, not {type(message).__name__}; pass Message(topic, body), or use "
                "send_many(topic, bodies)"
            )
        if message.body is not NOT_SERIALIZED:
            return message
        body = self._serialize(message.value)
        message = copy(message)
        message.body = body
        return message

    def _serialize(self, value: Any) -> Buffer:
        """Return the body for a value; raises as `_serialized`, and what a schema registry raised."""
        serializer = self._options.serializer
        if serializer is None:
            raise InvalidMessage("the message has a value, and the producer no serializer=; give it one, or body=")
        try:
            body = serializer(value)
        except (RegistryRefused, RegistryUnavailable, SchemaNotFound):
            raise  # the value may be right
        except Exception as error:  # of any kind: in the synchronous API it must not look like an interrupt
            reason = f"{type(error).__name__}: {error}"
            raise InvalidMessage(f"the value cannot be serialized: {reason}") from error
        return checked_body(body)
