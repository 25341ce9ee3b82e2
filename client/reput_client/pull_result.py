"""What one pull brought."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import NamedTuple, overload

from reput_client.pull_survey import SurveyedMessage, survey
from reput_client.received import DamagedRecord, ReceivedMessage
from reput_client.record_positions import Pulled, pulled_positions, record_positions
from reput_protocol.buffers import Buffer
from reput_protocol.counted import counted
from reput_protocol.filters import TagFilter

log = logging.getLogger("reput_client")


class PullStatus(Enum):
    """How a pull went (RocketMQ: PullStatus). In every case `next_begin_offset` says where to go on."""

    FOUND = "FOUND"
    NO_NEW_MESSAGE = "NO_NEW_MSG"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MSG"
    OFFSET_ILLEGAL = "OFFSET_ILLEGAL"


class PulledMessages(Sequence[ReceivedMessage]):
    """The messages of a pull. Each is made when it is asked for, over the bytes that came from the broker.

    A broker filters tags by their hash; what only shares the hash of a wanted tag is left out here. A message whose
    record cannot be read, or is not the one that was asked for, is there, and raises `DamagedMessage` when its content
    is looked at, as does one that fails its checksum.
    """

    __slots__ = ("_broker_name", "_positions", "_records", "_selected", "_surveyed", "_topic")

    def __init__(
        self,
        topic: str,
        records: Buffer,
        tag_filter: TagFilter | None = None,
        broker_name: str = "",
        pulled: Pulled | None = None,
    ) -> None:
        """Check the sizes of every record in `records`, and with `pulled` whether it is the one; decode nothing else.

        Raises:
            RecordMalformed: the records do not add up; with `pulled`, not even so far that damage could be told apart.
        """
        self._topic = topic
        self._broker_name = broker_name
        self._records = records if type(records) is bytes else bytes(records)
        self._surveyed: list[ReceivedMessage] | None = None
        self._selected: list[int] | None = None
        positions = (
            record_positions(self._records) if pulled is None else pulled_positions(self._records, pulled)
        )
        if positions is None:
            assert pulled is not None, "what nothing is asked of has its positions"
            self._surveyed = self._survey(pulled)
            positions = list(range(len(self._surveyed) + 1))
        self._positions = positions
        if tag_filter is not None and not tag_filter.matches_all:
            self._selected = [
                index for index in range(len(positions) - 1) if self._matches(index, tag_filter)
            ]

    def _survey(self, pulled: Pulled) -> list[ReceivedMessage]:
        surveyed = survey(self._records, pulled)
        damaged = [message for message in surveyed if message.damage]
        if damaged:
            log.warning(
                "pull from %s/%d: %d of %d messages are damaged; the first, at offset %d: %s",
                pulled.topic,
                pulled.queue_id,
                len(damaged),
                len(surveyed),
                damaged[0].queue_offset,
                damaged[0].damage,
            )
        return [self._surveyed_message(pulled.queue_id, message) for message in surveyed]

    def _surveyed_message(self, queue_id: int, message: SurveyedMessage) -> ReceivedMessage:
        start, end, queue_offset, damage = message
        if not damage:
            return ReceivedMessage(self._topic, self._records, start, end, self._broker_name)
        return DamagedRecord(
            self._topic, queue_id, queue_offset, self._records, start, end, damage, self._broker_name
        )

    def _matches(self, index: int, tag_filter: TagFilter) -> bool:
        message = self._at(index)
        # What a damaged one's tag was nobody knows; no filter hides damage.
        return isinstance(message, DamagedRecord) or tag_filter.matches_tag(message.unchecked_tag())

    @property
    def record_bytes(self) -> int:
        """The size of everything the pull brought."""
        return len(self._records)

    @property
    def record_data(self) -> bytes:
        """Everything the pull brought: records back to back, as they came."""
        return self._records

    def _at(self, index: int) -> ReceivedMessage:
        if self._surveyed is not None:
            return self._surveyed[index]
        positions = self._positions
        start, end = positions[index], positions[index + 1]
        return ReceivedMessage(self._topic, self._records, start, end, self._broker_name)

    def __len__(self) -> int:
        return len(self._positions) - 1 if self._selected is None else len(self._selected)

    def __iter__(self) -> Iterator[ReceivedMessage]:
        topic = self._topic
        broker_name = self._broker_name
        records = self._records
        positions = self._positions
        if self._selected is not None:
            for index in self._selected:
                yield self._at(index)
            return
        if self._surveyed is not None:
            yield from self._surveyed
            return
        start = 0
        for end in positions[1:]:
            yield ReceivedMessage(topic, records, start, end, broker_name)
            start = end

    @overload
    def __getitem__(self, index: int) -> ReceivedMessage: ...
    @overload
    def __getitem__(self, index: slice) -> list[ReceivedMessage]: ...
    def __getitem__(self, index: int | slice) -> ReceivedMessage | list[ReceivedMessage]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        size = len(self)
        if not -size <= index < size:
            raise IndexError(f"message {index} of {size}")
        index %= size
        return self._at(index if self._selected is None else self._selected[index])

    def __repr__(self) -> str:
        return f"<{counted(len(self), 'message')} of {self._topic}>"


class FoundMessages(NamedTuple):
    """Messages found by key, newest first."""

    messages: PulledMessages
    complete: bool
    """False while the broker makes its index again after a crash: messages may be missing."""


class PullResult:
    """Status, messages and the offsets to go on with.

    Attributes:
        status: how the pull went.
        messages: a sequence of `ReceivedMessage`, empty unless `status` is FOUND.
        next_begin_offset: the queue offset of the next pull, even when nothing was found.
        min_offset, max_offset: the bounds of the queue; `max_offset` is the next one to be written.
    """

    __slots__ = ("max_offset", "messages", "min_offset", "next_begin_offset", "status")

    def __init__(
        self,
        status: PullStatus,
        messages: PulledMessages,
        next_begin_offset: int,
        min_offset: int,
        max_offset: int,
    ) -> None:
        self.status = status
        self.messages = messages
        self.next_begin_offset = next_begin_offset
        self.min_offset = min_offset
        self.max_offset = max_offset

    def __repr__(self) -> str:
        return (
            f"<PullResult {self.status.name}, {counted(len(self.messages), 'message')}, next {self.next_begin_offset}, "
            f"queue [{self.min_offset}, {self.max_offset})>"
        )
