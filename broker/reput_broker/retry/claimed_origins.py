"""Proof of where a message is from that a client sends to a retry topic itself.

A consumer does so if the broker refuses its request 36, and copies the properties by which a dead letter is replayed
and a repeated request recognised. Anyone who may write to the topic can set them. So they count only if the log has
the message that they name, with the same content, in a topic that the sender may read: then request 36 would have had
the same effect.
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

import trio

from reput_broker.remoting.request import Refusal, Request
from reput_broker.retry.send_back_deduplication import SendBackKey
from reput_broker.send.retry_records import can_be_returned
from reput_broker.tenure.core import Core
from reput_broker.transactions.queue_reader import delivered_record_at
from reput_protocol import properties as names
from reput_protocol.codes import MessageSysFlag
from reput_protocol.errors import InvalidMessage
from reput_protocol.names import retry_topic
from reput_protocol.record.compression import inflate
from reput_protocol.record.forwarding import own_properties
from reput_protocol.record.message_id import decode_offset_message_id
from reput_protocol.record.record import Record, decode_record

_LOOKS_AT_ONCE = 4


class Claim(NamedTuple):
    """What a client sends to a retry topic."""

    group: str
    """The group of the topic."""
    properties: dict[str, str]
    body: bytes
    flag: int
    sys_flag: int

    @property
    def topic(self) -> str | None:
        """The original topic, as the client says."""
        return self.properties.get(names.RETRY_TOPIC)

    def is_of(self, record: Record) -> bool:
        """Whether a record is of the same message."""
        return (
            record.unique_key == self.properties.get(names.UNIQ_KEY)
            and record.flag == self.flag
            and own_properties(record.property_map()) == own_properties(self.properties)
            and self._has_body(record)
        )

    def _has_body(self, record: Record) -> bool:
        if record.body == self.body:
            return True
        body = _plain(record.body, record.sys_flag)  # RocketMQ's clients compress it again
        return body is not None and body == _plain(self.body, self.sys_flag)

    def is_from(self, record: Record) -> bool:
        """Whether the record shows that `topic` is right."""
        if record.topic != retry_topic(self.group):
            return record.topic == self.topic
        found = record.property_map()
        return found.get(names.RETRY_TOPIC) == self.topic and names.ORIGIN_UNPROVEN not in found


class ClaimedOrigins:
    """Checks claims by the log of one broker."""

    def __init__(self, core: Core) -> None:
        self._store = core.store
        self._reput = core.puts.reput
        self._limiter = trio.CapacityLimiter(_LOOKS_AT_ONCE)

    async def check(self, request: Request, claim: Claim) -> bool:
        """Remove what the properties of a claim say without proof; an original topic is marked as unproven.

        Returns:
            Whether it is proven that the client has received the message.
        """
        found = claim.properties
        if names.SEND_BACK_ID not in found and claim.topic is None:
            return False
        key = SendBackKey.of_text(claim.group, found.get(names.SEND_BACK_ID))
        received = None if key is None else self._record(request, key.physical_offset)
        first = self._record(request, _offset_of(found.get(names.ORIGIN_MESSAGE_ID, "")))
        can_search = claim.topic is not None and request.may("read", claim.topic) and self._can_search()
        was_received, is_proven = await trio.to_thread.run_sync(
            self._proof, claim, received, first, can_search, limiter=self._limiter
        )
        if not was_received:
            found.pop(names.SEND_BACK_ID, None)
        if claim.topic is not None and not is_proven:
            found[names.ORIGIN_UNPROVEN] = "true"
        return was_received or is_proven

    def _can_search(self) -> bool:
        if not self._store.options.index_enabled:
            return False
        with suppress(Refusal):
            self._reput.complete_index("what was sent back")
            return True
        return False

    def _record(self, request: Request, physical_offset: int) -> Record | None:
        """Return the record there, if consumers receive it and the sender may read it."""
        record = delivered_record_at(self._store, physical_offset)
        if record is None or not can_be_returned(record.topic) or not request.may("read", record.topic):
            return None
        return record

    def _proof(
        self, claim: Claim, received: Record | None, first: Record | None, can_search: bool
    ) -> tuple[bool, bool]:
        """Return whether the client has received the message as it says, and whether its topic is proven."""
        was_received = received is not None and claim.is_of(received)
        if received is not None and was_received and claim.is_from(received):
            return True, True
        is_proven = first is not None and claim.is_from(first) and claim.is_of(first)
        return was_received, is_proven or (can_search and self._is_in_index(claim))

    def _is_in_index(self, claim: Claim) -> bool:
        """Whether the original topic has the message: RocketMQ's clients name it by its unique id only."""
        topic, unique_id = claim.topic, claim.properties.get(names.UNIQ_KEY)
        if topic is None or unique_id is None or not can_be_returned(topic):
            return False
        found = self._store.find_by_unique_key(
            topic, unique_id, accept=lambda data: claim.is_of(decode_record(data, check_crc=False))
        )
        return found.record is not None


def _offset_of(message_id: str) -> int:
    try:
        return decode_offset_message_id(message_id)[1]
    except InvalidMessage:
        return -1


def _plain(body: bytes, sys_flag: int) -> bytes | None:
    """Return a body as it was before its producer compressed it; None if it is damaged, or not compressed by zlib."""
    if not sys_flag & MessageSysFlag.COMPRESSED:
        return body
    try:
        return inflate(body)
    except ValueError:
        return None
