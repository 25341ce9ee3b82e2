"""Sends of many messages, and the contents of blocks that no message joins later."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, islice, takewhile
from typing import Any, Final, NamedTuple

from reput_client.errors import BrokerNotFound, ClientClosed, ConnectFailed, PartlySent, RequestTimeout
from reput_client.produce.block import OutgoingBlock, Terms
from reput_client.produce.block_sender import BlockSender
from reput_client.produce.puts import check_single, outcome_unknown, too_large
from reput_client.produce.queue_selector import QueueChoice
from reput_client.receipts import ChainedReceipts, SendReceipt
from reput_client.transport.session import Session
from reput_protocol.buffers import Buffer
from reput_protocol.errors import InvalidMessage, ReputError
from reput_protocol.printable import counted
from reput_protocol.properties import check_properties_size, encode_properties
from reput_protocol.record.delays import Delay
from reput_protocol.record.layout import record_bytes
from reput_protocol.record.message import Message, MessageQueue, checked_body, encode_keys_texts, encode_properties_text
from reput_protocol.record.put_block import BLOCK_BYTES_MAX

_NOT_SENT: Final = (BrokerNotFound, ClientClosed, ConnectFailed, RequestTimeout)


class Contents(NamedTuple):
    """Messages for one block.

    Attributes:
        texts: as `OutgoingBlock.texts`.
        flags: of each message, or one for all.
        own_ids: messages' own unique ids, by message number.
        delay, sys_flag: as those of `OutgoingBlock`.
    """

    topic: str
    bodies: list[Buffer]
    texts: list[bytes]
    flags: list[int]
    own_ids: dict[int, str] = {}  # noqa: RUF012  # the default is never changed
    delay: Delay | None = None
    sys_flag: int | None = None


class Limits(NamedTuple):
    """The size of a block: maximum messages, and bytes unless a single message is larger.

    Attributes:
        id_bytes: of the unique id added to each message's properties.
    """

    messages: int
    size: int
    id_bytes: int


def block_of(contents: Contents, queue: MessageQueue, terms: Terms, *, is_free: bool) -> OutgoingBlock:
    """Return the block with these contents; messages cannot be added to it. `is_free`: it may go to another queue."""
    block = OutgoingBlock(queue, terms, is_free=is_free)
    block.bodies, block.texts, block.flags = contents.bodies, contents.texts, contents.flags
    block.own_ids = contents.own_ids
    block.delay = contents.delay
    block.sys_flag = contents.sys_flag
    return block


def contents_of_one(message: Message, id_bytes: int, added: Mapping[str, str], sys_flag: int) -> Contents:
    """Return the contents of the block of a message with properties that the client adds, which is sent as a 310.

    `id_bytes` is the size of the unique id, if the message has no own one. Raises `InvalidMessage`.
    """
    text = encode_properties_text(message, None) + encode_properties(added)
    own_ids = {} if message.unique_id is None else {0: message.unique_id}
    check_single(message.topic, len(message.body), len(text) + (0 if own_ids else id_bytes))
    return Contents(message.topic, [message.body], [text], [message.flag], own_ids, message.delay, sys_flag)


def contents_of(messages: Iterable[Message], limits: Limits) -> Iterator[Contents]:
    """Divide messages into blocks of one topic; a message with a delay or a priority has a block of its own.

    Raises `InvalidMessage` for the first message that is in no block.
    """
    contents, size, alone = Contents("", [], [], []), 0, False
    topic, fixed = "", 0
    try:
        for message in messages:
            text = encode_properties_text(message, None)
            own_id = message.unique_id
            id_bytes = 0 if own_id is not None else limits.id_bytes
            check_properties_size(len(text) + id_bytes)
            if message.topic != topic:
                topic, fixed = message.topic, record_bytes(0, message.topic, 0)
            own_size = fixed + len(message.body) + len(text) + id_bytes
            if own_size > BLOCK_BYTES_MAX:
                raise too_large(own_size)
            was_alone = alone
            alone = message.delay is not None
            if contents.bodies and (
                alone
                or was_alone
                or message.topic != contents.topic
                or size + own_size > limits.size
                or len(contents.bodies) >= limits.messages
            ):
                yield contents
                contents = Contents("", [], [], [])
            if not contents.bodies:
                contents, size = Contents(message.topic, [], [], [], {}, message.delay), 0
            if own_id is not None:
                contents.own_ids[len(contents.bodies)] = own_id
            contents.bodies.append(message.body)
            contents.texts.append(text)
            contents.flags.append(message.flag)
            size += own_size
    except ReputError:  # of a message, or of the schema registry that a serializer asks
        if contents.bodies:
            yield contents
        raise
    if contents.bodies:
        yield contents


def contents_of_bodies(
    topic: str,
    bodies: Iterable[Any],
    texts: list[bytes],
    flag: int,
    limits: Limits,
    serialize: Callable[[Any], Buffer] | None = None,
) -> Iterator[Contents]:
    """Divide the bodies of one topic into blocks; `texts` has each message's properties, or one entry for all.

    With `serialize`, `bodies` are values, for which it returns the bodies.

    Raises `InvalidMessage` for the first body that is in no block.
    """
    iterator = iter(bodies)
    fixed, index = record_bytes(0, topic, limits.id_bytes), 0
    gathered: list[Buffer] = []
    bad: ReputError | None = None
    while True:
        fresh = list(islice(iterator, limits.messages - len(gathered)))
        if fresh and (serialize is not None or not set(map(type, fresh)) <= {bytes}):
            fresh, bad = _checked(fresh, serialize or checked_body)
            iterator = iterator if bad is None else iter(())
        gathered += fresh
        if not gathered:
            break
        own_texts = texts if len(texts) == 1 else texts[index : index + len(gathered)]
        count, size = len(gathered), sum(map(len, gathered)) + len(gathered) * fixed
        if len(own_texts) == 1:
            size += count * len(own_texts[0])
        else:
            size += sum(map(len, own_texts))
        if size > limits.size:
            sizes = [
                fixed + len(body) + len(text)
                for body, text in zip(
                    gathered, own_texts if len(own_texts) == count else own_texts * count, strict=True
                )
            ]
            if sizes[0] > BLOCK_BYTES_MAX:
                raise too_large(sizes[0])
            count = max(1, sum(1 for _ in takewhile(lambda end: end <= limits.size, accumulate(sizes))))
        if count:
            own_texts = own_texts if len(own_texts) == 1 else own_texts[:count]
            yield Contents(topic, gathered[:count], own_texts, [flag])
            gathered, index = gathered[count:], index + count
    if bad is not None:
        raise bad


def _checked(bodies: list[Any], to_body: Callable[[Any], Buffer]) -> tuple[list[Buffer], ReputError | None]:
    """Return the bodies as `to_body` makes them up to the first invalid one, and its error."""
    good: list[Buffer] = []
    for body in bodies:
        try:
            good.append(to_body(body))
        except ReputError as error:
            return good, error
    return good, None


def texts_of(
    topic: str,
    count: int,
    id_bytes: int,
    tag: str | None,
    tags: Sequence[str | None] | None,
    keys: Sequence[Sequence[str]] | None,
    properties: Mapping[str, str] | None,
    flag: int,
) -> list[bytes]:
    """Return the encoded properties of `count` messages without unique ids; one entry if all are the same.

    `id_bytes` is the size of the unique id added later. Raises `InvalidName` or `InvalidMessage`, naming the argument.
    """
    common = Message(topic, b"", tag, properties=properties, flag=flag)
    if tags is None and keys is None:
        text = encode_properties_text(common, None)
        check_properties_size(len(text) + id_bytes)
        return [text]
    if tags is not None and tag is not None:
        raise InvalidMessage("tag= and tags= are both given; tags= has one for each body")
    for name, given in (("tags", tags), ("keys", keys)):
        if given is not None and len(given) != count:
            raise InvalidMessage(
                f"{name} has {counted(len(given), 'entry', 'entries')} for {counted(count, 'body', 'bodies')}; "
                "give one for each"
            )
    ends = encode_properties_text(Message(topic, b"", properties=properties), None)
    own_tags = [tag] * count if tags is None else tags
    starts: dict[str | None, bytes] = {
        own: encode_properties_text(Message(topic, b"", own), None) for own in dict.fromkeys(own_tags)
    }
    if keys is None:
        whole = {own: start + ends for own, start in starts.items()}
        texts = [whole[own] for own in own_tags]
    else:
        texts = [starts[own] + key_text + ends for own, key_text in zip(own_tags, encode_keys_texts(keys), strict=True)]
    check_properties_size(max(map(len, texts), default=0) + id_bytes)
    return texts


class SendOfMany:
    """One send of many messages. Once a block fails, only those in flight are waited for.

    Args:
        in_flight: maximum unanswered blocks.
        choice: the queue of all blocks; None: each goes to the next.
    """

    def __init__(
        self, session: Session, sender: BlockSender, terms: Terms, in_flight: int, choice: QueueChoice
    ) -> None:
        self._session = session
        self._sender = sender
        self._terms = terms
        self._in_flight = in_flight
        self._choice = choice
        self._room_from = in_flight - max(1, in_flight // 2)
        """The next blocks are encoded at this many unanswered; the broker handles those meanwhile."""
        self._blocks: list[tuple[int, OutgoingBlock]] = []
        """With the index of the first message of each."""
        self._open: dict[OutgoingBlock, None] = {}
        """Unfinished blocks in order."""
        self._begun = 0
        """Messages in blocks."""
        self._failed = False

    async def run(self, contents: Iterable[Contents]) -> Sequence[SendReceipt]:
        """Send all messages and return their receipts in order; raises like `Producer.send_many`."""
        errors: dict[int, ReputError] = {}
        opened, sender = self._open, self._sender
        try:
            try:
                for one in contents:
                    if len(opened) >= self._in_flight:
                        await self._wait(self._has_room)
                    if self._failed:
                        break
                    try:
                        await self._begin(one)
                    except ClientClosed as closed:
                        errors[self._begun] = closed
                        raise
                    sender.go_on()
            except ClientClosed:
                raise
            except ReputError as error:
                if not self._blocks:
                    raise
                errors[self._begun] = error
            await self._wait(lambda: not opened)
        except ClientClosed as closed:
            if not self._blocks:
                raise
            self._failed = True
            sender.withdraw(opened)
            for block in opened:
                for each in (*block.parts, block):
                    if not each.done:
                        each.finish(None, outcome_unknown(each.queue, each.unique_ids, str(closed)))
            opened.clear()
        finally:
            sender.withdraw(opened)
        return self._outcome(errors)

    async def _wait(self, condition: Callable[[], bool]) -> None:
        await self._sender.until(condition)

    async def _begin(self, contents: Contents) -> None:
        """Send the messages of one block; if this raises, no part of it was sent."""
        session = self._session
        deadline = session.deadline(self._terms.timeout_s)
        route = await session.publish_route(contents.topic, deadline)
        queue = self._sender.choose(route, self._choice)
        block = block_of(contents, queue, self._terms, is_free=self._choice is None)
        block.on_done = self._on_done
        self._blocks.append((self._begun, block))
        self._begun += len(contents.bodies)
        self._open[block] = None
        self._sender.add(block)

    def _has_room(self) -> bool:
        return len(self._open) <= self._room_from or self._failed

    def _on_done(self, block: OutgoingBlock) -> None:
        del self._open[block]
        if block.error is not None and not self._failed:
            self._failed = True
            waiting = [b for b in self._open if b.call is None and not b.parts and not b.done]
            self._sender.withdraw(waiting)
            for other in waiting:
                del self._open[other]

    def _outcome(self, errors: dict[int, ReputError]) -> Sequence[SendReceipt]:
        """Return all receipts, or raise the combined errors of the blocks and `errors`."""
        done = [(first, block) for first, block in self._blocks if block.done]
        stored: dict[int, SendReceipt] = {}
        if errors or self._failed or len(done) < len(self._blocks):
            for first, block in done:
                for number in range(block.count):
                    error, receipt = block.error_of(number), block.receipt_of(number)
                    if error is not None:
                        errors[first + number] = error
                    if receipt is not None:
                        stored[first + number] = receipt
        if not errors:
            return ChainedReceipts([block.receipts or () for _, block in done])
        if not stored and isinstance(errors.get(0), _NOT_SENT):
            raise errors[0]
        count = max((*errors, *stored)) + 1
        raise PartlySent([stored.get(number) for number in range(count)], errors) from errors[min(errors)]
