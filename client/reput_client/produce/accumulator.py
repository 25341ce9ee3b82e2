"""The open blocks of `send` and `post`, at most one for each queue, and the limit on bytes held. No I/O.

A message is validated before any part of it is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from reput_client.produce.block import GatheredBlock, PostedMessage, Terms, Waits
from reput_client.produce.puts import too_large
from reput_client.produce.queue_selector import AnyBroker, FreeChoice, QueueChoice, named_queue
from reput_client.produce.unique_ids import id_text_bytes
from reput_client.transport.routing import RouteTable
from reput_protocol.properties import EXPIRES_AFTER, EXPIRES_AT, SHARDING_KEY, check_properties_size
from reput_protocol.record.delays import Delay
from reput_protocol.record.layout import record_bytes
from reput_protocol.record.message import Message, MessageQueue, encode_properties_text
from reput_protocol.record.message_id import UniqueIdGenerator
from reput_protocol.record.put_block import BLOCK_BYTES_MAX

BLOCK_MESSAGES: Final = 1024
"""Maximum messages in a block; larger blocks are hardly cheaper."""
_TEXTS_MAX: Final = 1024
_TEXT_BYTES_MAX: Final = 256
_NOT_IN_BLOCKS: Final = frozenset({EXPIRES_AFTER, EXPIRES_AT, SHARDING_KEY})


class Accumulator:
    """The open blocks of one producer.

    Args:
        ids: makes the unique ids; None writes none.
        known_apart: messages with an own unique id get blocks of their own, since the broker looks up all ids of such a
            block.
        block_bytes: maximum size of a block, unless a single message is larger.
        held_max: maximum bytes of all unfinished blocks, unless a single message is larger.
    """

    def __init__(
        self, routes: RouteTable, ids: UniqueIdGenerator | None, *, known_apart: bool, block_bytes: int, held_max: int
    ) -> None:
        self._routes = routes
        self._known_apart = known_apart
        self._id_bytes = id_text_bytes(ids)
        self._block_bytes = block_bytes
        self._held_max = held_max
        self.held = 0
        """Bytes of all unfinished blocks; the code that finishes a block subtracts it."""
        self.wanting = 0
        """Callers that wait for room."""
        self.open: dict[MessageQueue, GatheredBlock] = {}
        """In the order of opening."""
        self.current: dict[tuple[str, FreeChoice], GatheredBlock] = {}
        """The open block of messages for which any broker will do, by topic and choice."""
        self.last_serial = 0
        """Of the last block opened."""
        self._fixed: dict[str, int] = {}
        """By topic: bytes of a record without body and properties, but with the unique id."""
        self._texts: dict[str | None, bytes] = {}
        """Encoded properties of messages that have only a tag, by tag."""

    def take(self, message: Message, terms: Terms, choice: QueueChoice) -> PostedMessage | None:
        """Put a message into its open block; None if there is none with room.

        Raises `InvalidMessage` or `NoQueue`.
        """
        block: GatheredBlock | None = None
        if choice is None or isinstance(choice, AnyBroker):  # a check against the union takes three times as long
            block = self.current.get((message.topic, choice))
        else:
            route = self._routes.get(message.topic)
            if route is not None and not route.template:  # else the topic may exist by now
                block = self.open.get(named_queue(route, choice))
        if block is None:
            return None
        if message.delay is not None and is_alone(message):
            return None
        text, size = self.measure(message)
        if (
            (block.terms is not terms and block.terms != terms)
            or block.size + size > self._block_bytes
            or self.held + size > self._held_max
            or len(block.bodies) >= BLOCK_MESSAGES
            or (self._known_apart and self._is_apart(block, message))
        ):
            return None
        if choice is not None:
            block.pin(choice)
        return self.put(block, message, text, size)

    def measure(self, message: Message) -> tuple[bytes, int]:
        """Return a message's encoded properties, with a unique id only if it has its own, and its record's size.

        Raises `InvalidMessage`.
        """
        is_plain = not (
            message.keys or message.properties or message.unique_id is not None or message.delay is not None
        )
        text = self._texts.get(message.tag) if is_plain else None
        if text is None:
            text = encode_properties_text(message, None)
            check_properties_size(len(text) + self._id_bytes)
            if is_plain and len(text) <= _TEXT_BYTES_MAX:
                if len(self._texts) >= _TEXTS_MAX:
                    self._texts.clear()
                self._texts[message.tag] = text
        fixed = self._fixed.get(message.topic) or self._fixed_of(message.topic)
        size = fixed + len(message.body) + len(text)
        if size > BLOCK_BYTES_MAX:
            raise too_large(size)
        return text, size

    def _fixed_of(self, topic: str) -> int:
        if len(self._fixed) >= _TEXTS_MAX:
            self._fixed.clear()
        fixed = self._fixed[topic] = record_bytes(self._id_bytes, topic, 0)
        return fixed

    def has_room(self, size: int) -> bool:
        """Whether a record of `size` bytes fits into `held_max`."""
        return self.held + size <= self._held_max or not self.held

    @property
    def is_stuck(self) -> bool:
        """Whether callers wait for room that only the open blocks can make."""
        return bool(self.wanting) and self.held == sum(block.size for block in self.open.values())

    def fits(self, block: GatheredBlock, message: Message, size: int, terms: Terms) -> bool:
        """Whether a message that need not be alone may go into an open block."""
        return (
            block.terms == terms
            and block.size + size <= self._block_bytes
            and len(block.bodies) < BLOCK_MESSAGES
            and not (self._known_apart and self._is_apart(block, message))
        )

    def _is_apart(self, block: GatheredBlock, message: Message) -> bool:
        """Whether a block has messages with own unique ids and the message has none, or the other way round."""
        return bool(block.bodies) and bool(block.own_ids) != (message.unique_id is not None)

    def begin(
        self,
        queue: MessageQueue,
        terms: Terms,
        on_done: Callable[[GatheredBlock], None],
        waits: Waits,
        choice: QueueChoice,
        delay: Delay | None,
    ) -> GatheredBlock:
        """Open a block for a queue that has none.

        Args:
            choice: of its first message; if that is free, others with the same one may join it.
            delay: why the message is alone; None: others may join it.
        """
        self.last_serial += 1
        block = GatheredBlock(
            queue,
            terms,
            on_done,
            isinstance(choice, FreeChoice),
            choice if isinstance(choice, AnyBroker) else None,
            delay=delay,
            serial=self.last_serial,
            waits=waits,
            fixed=self._fixed.get(queue.topic) or self._fixed_of(queue.topic),
        )
        self.open[queue] = block
        if block.is_free and delay is None:
            self.current[queue.topic, block.number] = block
        return block

    def put(self, block: GatheredBlock, message: Message, text: bytes, size: int) -> PostedMessage:
        """Put a message that fits into an open block."""
        place = len(block.bodies)
        if message.unique_id is not None:
            block.own_ids[place] = message.unique_id
        block.bodies.append(bytes(message.body))  # the caller may change one that is not `bytes`
        block.texts.append(text)
        block.flags.append(message.flag)
        block.size += size
        self.held += size
        return PostedMessage(block, place + len(block.withdrawn))

    def close(self, block: GatheredBlock) -> None:
        """Stop adding messages to a block."""
        del self.open[block.queue]
        key = (block.queue.topic, block.number)
        if self.current.get(key) is block:
            del self.current[key]

    def withdraw(self, block: GatheredBlock, number: int) -> None:
        """Remove a message from an open block."""
        self.held -= block.size
        block.withdraw(number)
        self.held += block.size


def is_alone(message: Message) -> bool:
    """Whether a message needs a block of its own, because the broker makes another record of it: it has a delay or
    expires, or its ordering key excludes its priority."""
    delay = message.delay
    return delay is not None and not (delay.is_priority and _NOT_IN_BLOCKS.isdisjoint(message.properties))
