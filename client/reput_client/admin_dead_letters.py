"""The part of `Admin` for dead letters: messages that a consumer group has given up on. Reading and replaying them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, cast

from reput_client.admin_topics import TopicAdmin
from reput_client.received import ReceivedMessage
from reput_protocol import properties as names
from reput_protocol.names import REPLAY_GROUP, check_group, check_send_topic, dlq_topic
from reput_protocol.record.dead_letter import dead_letter_origin, replayed_id

if TYPE_CHECKING:
    from reput_client.produce.producer import Producer

_PRODUCER_GROUP: Final = "reput-dlq"
_SEND_TIMEOUT_S: Final = 10.0


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


class Replayed(Enum):
    """What has become of a dead letter that was to be replayed."""

    SENT = "sent"
    SENT_BEFORE = "it was replayed before"
    WITHOUT_ORIGIN = "it does not say where it came from"


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

    async def replay_progress(self, letters: DeadLetters, group: str = REPLAY_GROUP) -> dict[str, int]:
        """Return where a replay continues, by broker; `group` keeps its progress (see `replay_group`)."""
        return {
            name: await self.committed_offset(group, letters.topic, 0, broker_name=name) or 0
            for name in letters.spans
        }

    async def replay_dead_letter(
        self,
        letter: DeadLetter,
        target: str | None = None,
        *,
        sends_again: bool = False,
        dry_run: bool = False,
    ) -> tuple[Replayed, str]:
        """Send a dead letter to the topic that it came from, or to `target`; return the outcome and the topic.

        It becomes a new message with the same body, tag, keys, flag and user properties and no attempts, and is on disk
        when this returns. The dead letter stays. Its unique id follows from the dead letter, and DLQ_ORIGIN_MESSAGE_ID
        has the old one: what an earlier replay has sent is found by it and not sent again.

        Args:
            sends_again: even if a replay has sent it before.
            dry_run: do not send it.

        Raises:
            TopicNotFound: the topic does not exist any more; it is not created.
            DamagedMessage: the dead letter fails its checksum.
            ReputError: it was not sent, as for `Producer.send`.
        """
        topic = target or letter.origin.topic
        if topic is None:
            return Replayed.WITHOUT_ORIGIN, ""
        await self.topic_configs(check_send_topic(topic))
        unique_id = replayed_id(letter.message.offset_message_id)
        if not sends_again and await self._was_sent(topic, unique_id, letter.message.body):
            return Replayed.SENT_BEFORE, topic
        if not dry_run:
            await self._replaying_producer.forward(
                letter.message,
                topic,
                properties={names.DLQ_ORIGIN_MESSAGE_ID: letter.origin.message_id},
                unique_id=unique_id,
                ordering_key=letter.properties.get(names.SHARDING_KEY),
                timeout_s=max(_SEND_TIMEOUT_S, self._session.timeout_s),
            )
        return Replayed.SENT, topic

    async def _was_sent(self, topic: str, unique_id: str, body: bytes) -> bool:
        """Whether a replay has sent it before. Its id can be computed, so another message may have it."""
        return any(found.body == body for found in (await self.find_messages(topic, unique_id)).messages)

    @cached_property
    def _replaying_producer(self) -> Producer:
        from reput_client.produce.producer import Producer  # most programs with an `Admin` send nothing

        # Anyone may have sent another message with the id of a replay, which must not keep the letter out.
        return Producer(cast("Any", self._session), group=_PRODUCER_GROUP, deduplicate=False)


def replay_group(expression: str | None = None, target: str | None = None) -> str:
    """Return the group whose committed offset is the progress of a replay.

    Each filter and target topic has its own: the same replay continues an interrupted one, another filter starts at the
    beginning.
    """
    if expression is None and target is None:
        return REPLAY_GROUP
    digest = hashlib.sha256(f"{expression or ''}\n{target or ''}".encode()).hexdigest()
    return f"{REPLAY_GROUP}_{digest[:12]}"
