"""The part of `Admin` for dead letters: messages that a consumer group could not handle. Finding and replaying them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from reput_client.admin.topics import TopicAdmin
from reput_client.received import ReceivedMessage
from reput_protocol.codes import RequestCode
from reput_protocol.commands.dead_letters import (
    REPLAYED_AT_ONCE_MAX,
    LetterPlace,
    LetterPlaces,
    QueryReplaysHeader,
    ReplayedLetter,
    ReplayHeader,
    ReplayResult,
    Replays,
)
from reput_protocol.names import check_group, check_send_topic, dlq_topic
from reput_protocol.record.dead_letter import dead_letter_origin
from reput_protocol.wire.header import HeaderType, Value

_MSGPACK: Final = HeaderType.MSGPACK
_REPLAY_TIMEOUT_S: Final = 15.0
"""The broker may have to find in its index first what was replayed."""


class DeadLetter:
    """One dead letter."""

    def __init__(self, message: ReceivedMessage) -> None:
        self.message = message
        self.properties = message.properties
        self.origin = dead_letter_origin(self.properties, message.offset_message_id)

    @property
    def attempts(self) -> int:
        """The number of delivery attempts."""
        return self.message.reconsume_times

    @property
    def place(self) -> LetterPlace:
        """What `Admin.replay_dead_letters` knows it by."""
        return LetterPlace(self.message.queue_offset, self.message.physical_offset)


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """Dead letters of a group: offsets `[start, end)` of its dead-letter topic's queue, by broker."""

    topic: str
    spans: Mapping[str, tuple[int, int]]

    def __len__(self) -> int:
        return sum(end - start for start, end in self.spans.values())

    def after(self, done: Mapping[str, int]) -> DeadLetters:
        """Return those from an offset on, by broker."""
        spans = {
            name: (max(start, min(end, done.get(name, 0))), end) for name, (start, end) in self.spans.items()
        }
        return DeadLetters(self.topic, spans)


class DeadLetterAdmin(TopicAdmin):
    """The methods of `Admin` for dead letters; errors as there."""

    async def dead_letters(self, group: str) -> DeadLetters:
        """Return the place of all dead letters of a group.

        Raises:
            TopicNotFound: it has none.
        """
        topic = dlq_topic(check_group(group))
        spans = {}
        for name in await self.topic_configs(topic):
            first = await self.min_offset(topic, 0, broker_name=name)
            spans[name] = (first, await self.max_offset(topic, 0, broker_name=name))
        return DeadLetters(topic, spans)

    async def replay_dead_letters(
        self,
        group: str,
        letters: Iterable[LetterPlace | int],
        *,
        broker_name: str | None = None,
        target: str | None = None,
        again: bool = False,
        dry_run: bool = False,
    ) -> list[ReplayedLetter]:
        """Have a broker send dead letters of a group to the topics that they came from; return what became of each.

        A dead letter is sent once, however often and by how many it is asked for, to whichever topic: the broker stores
        with the message which dead letter it replays. So the request may be repeated after any error. The message is a
        new one with the same body, tag, keys, flag and user properties and no attempts; DLQ_ORIGIN_MESSAGE_ID has the
        id of the original. It is on disk when this returns, and the dead letter stays.

        Args:
            letters: their offsets in the queue of dead letters, or their places (`DeadLetter.place`), which another
                dead letter at the same offset does not have.
            broker_name: of the broker that has them; by default the one at the client's address.
            target: send them to this topic instead. It needs no proof of where they came from.
            again: also those that were replayed before. Repeated, the request sends them once more.
            dry_run: send nothing.

        Raises:
            TopicNotFound: the group has no dead letters, or the target does not exist.
            BrokerError: it is unknown which of them were replayed, or they cannot be stored now. Some may have been
                sent, and are not sent again.
        """
        topic = None if target is None else check_send_topic(target)
        header = ReplayHeader(check_group(group), topic, again or None, dry_run or None).to_ext(_MSGPACK)
        places = [LetterPlace(one) if isinstance(one, int) else one for one in letters]
        outcomes: list[ReplayedLetter] = []
        what = f"replay of dead letters of {group}"
        for first in range(0, len(places), REPLAYED_AT_ONCE_MAX):
            body = LetterPlaces(places[first : first + REPLAYED_AT_ONCE_MAX]).to_json()
            answer = await self._of_letters(broker_name, RequestCode.REPLAY_DEAD_LETTERS, header, what, body)
            outcomes += ReplayResult.from_json(answer).letters
        return outcomes

    async def replays(
        self, group: str, begin_offset: int = 0, end_offset: int = 0, *, broker_name: str | None = None
    ) -> Replays:
        """Return how many dead letters of a group a broker has, how many were replayed, and which of a range.

        Args:
            begin_offset, end_offset: of the queue of dead letters. Long ranges are not answered whole: the rest begins
                at `next_offset`.
            broker_name: of the broker that has them; by default the one at the client's address.

        Raises:
            TopicNotFound: the group has no dead letters.
            BrokerError: it is unknown which of them were replayed.
        """
        header = QueryReplaysHeader(check_group(group), begin_offset, end_offset).to_ext(_MSGPACK)
        what = f"replayed dead letters of {group}"
        return Replays.from_json(
            await self._of_letters(broker_name, RequestCode.QUERY_REPLAYS, header, what, b"")
        )

    async def _of_letters(
        self, broker_name: str | None, code: RequestCode, ext: Mapping[str, Value], what: str, body: bytes
    ) -> memoryview:
        timeout_s = max(_REPLAY_TIMEOUT_S, self._session.timeout_s)
        if broker_name is None:
            deadline = self._session.deadline(timeout_s)
            return (await self._session.ask_ok(code, ext, what=what, body=body, deadline=deadline)).body
        calls = await self._ask_each(code, ext, what, body, brokers=[broker_name], timeout_s=timeout_s)
        return calls[broker_name].body
