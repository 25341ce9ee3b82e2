"""Messages that have expired: left out of what consumers get, and made dead letters if their group wants that.

Only topics that have had such messages are looked at (`TopicConfigManager.expiring`), and retry topics, which have
copies of messages of any topic.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple

import trio

from reput_broker.remoting.request import Refusal
from reput_broker.send.retry_records import Returned, expired_message
from reput_broker.send.send_records import note_dead_letter
from reput_broker.store.base.errors import DiskFull, FileNotMade, StoreClosed
from reput_broker.store.base.results import PutResult, PutStatus
from reput_broker.tenure.core import Core
from reput_protocol.errors import ErrorCode, RecordMalformed
from reput_protocol.names import RETRY_PREFIX, dlq_topic
from reput_protocol.record.delays import MARK, expiry_in
from reput_protocol.record.record import Record, decode_record, record_views

_BURIED_MAX: Final = 65_536
_LETTERS_A_TURN: Final = 32
"""Dead letters that are stored before other tasks run."""
_ROOM: Final = 2048
"""More than a record has besides properties and body."""


class Sifted(NamedTuple):
    """Records without those that have expired."""

    body: bytes
    left: int
    """How many there are."""
    expired: list[Record]
    """Those that are to be dead letters."""


class ExpiredMessages:
    """Recognises expired messages. A slave, which can store nothing, delivers those that are to be dead letters."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._expiring = core.tables.topics.expiring
        self._buried: OrderedDict[tuple[str, int], int] = OrderedDict()
        """Of the messages that were made dead letters last, by group and log offset, where in the log the dead letter
        ends: pulls may be repeated."""

    def sift(self, topic: str, group: str, body: bytes) -> Sifted | None:
        """Return the records of an answer to a group without expired ones, and count those; None if there are none."""
        if MARK not in body or not (topic in self._expiring or topic.startswith(RETRY_PREFIX)):
            return None
        try:
            views = record_views(body, check_crc=False)
        except RecordMalformed:
            return None  # the consumer finds and reports the damage
        now_ms = self._core.clock_ms()
        kept: list[bytes] = []
        expired: list[bytes] = []
        for view in views:
            moment = expiry_in(bytes(view.properties), view.store_timestamp_ms)
            data = body[view.position : view.position + view.size]
            (kept if moment is None or moment > now_ms else expired).append(data)
        if not expired:
            return None
        settings = self._core.group_access.settings_of(group)
        is_kept = settings is not None and settings.keeps_expired
        if is_kept and self._core.store.options.is_replica:
            return None
        self._core.counters.groups[topic, group].expired += len(expired)
        records = [decode_record(data, check_crc=False) for data in expired] if is_kept else []
        return Sifted(b"".join(kept), len(kept), records)

    async def bury(self, group: str, expired: Sequence[Record]) -> None:
        """Store dead letters of a group for expired messages, unless that was done.

        On return they are in their queue: on disk with `store.flush = "sync"`, and with an election confirmed. So the
        group may pass the messages.

        Raises:
            Refusal: it cannot be done now.
            OSError: the dead-letter topic could not be saved.
        """
        if not expired:
            return
        end_offset = 0
        noted: dict[str, list[Record]] = {}
        try:
            for number, record in enumerate(expired, 1):
                place = group, record.physical_offset
                if place not in self._buried:
                    await self._core.topic_access.create_internal(dlq_topic(group))
                    await self._bury(place, expired_message(record, group), noted)
                end_offset = max(end_offset, self._buried.get(place, 0))
                if number % _LETTERS_A_TURN == 0:
                    await trio.lowlevel.checkpoint()
        finally:
            for topic, letters in noted.items():
                note_dead_letter(self._core, group, topic, letters[0], messages=len(letters))
            while len(self._buried) > _BURIED_MAX:
                self._buried.popitem(last=False)
        await self._core.puts.progress.dispatched.reached(end_offset)

    async def _bury(self, place: tuple[str, int], letter: Returned, noted: dict[str, list[Record]]) -> None:
        def put() -> PutResult | None:
            if place in self._buried:
                return None  # by another pull, while this waited
            result = self._core.store.put_record(letter.record)
            if result.status is PutStatus.PUT_OK:
                self._buried[place] = result.end_offset
                self._core.puts.own.wrote()
                noted.setdefault(letter.origin_topic, []).append(letter.record)
            return result

        size = len(letter.record.body) + len(letter.record.properties) + _ROOM
        try:
            result = await self._core.puts.own.under_lock(size, put)
        except (DiskFull, FileNotMade, StoreClosed) as error:
            raise _not_buried(str(error)) from error
        if result is not None and result.status is not PutStatus.PUT_OK:
            raise _not_buried(result.status.name)


def _not_buried(reason: str) -> Refusal:
    return Refusal(
        ErrorCode.READ_ONLY,
        f"the dead letter of an expired message was not stored: {reason}; nothing was delivered: ask again",
    )
