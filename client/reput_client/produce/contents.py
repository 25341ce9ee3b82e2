"""The contents of the blocks of `send_many`, `send_batch` and sends of one message, which no message joins later."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, islice, takewhile
from typing import Any, NamedTuple

from reput_client.produce.block import OutgoingBlock, Terms
from reput_client.produce.puts import check_single, too_large
from reput_protocol.buffers import Buffer
from reput_protocol.errors import InvalidMessage, ReputError
from reput_protocol.printable import counted
from reput_protocol.properties import check_properties_size, encode_properties
from reput_protocol.record.delays import Delay
from reput_protocol.record.layout import record_bytes
from reput_protocol.record.message import (
    Message,
    MessageQueue,
    checked_body,
    encode_keys_texts,
    encode_properties_text,
)
from reput_protocol.record.put_block import BLOCK_BYTES_MAX


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


def contents_of_one(
    message: Message,
    id_bytes: int,
    added: Mapping[str, str],
    sys_flag: int,
) -> Contents:
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
        texts = [
            starts[own] + key_text + ends
            for own, key_text in zip(own_tags, encode_keys_texts(keys), strict=True)
        ]
    check_properties_size(max(map(len, texts), default=0) + id_bytes)
    return texts
