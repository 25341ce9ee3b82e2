"""What the broker knows of one message: how far each group is with it, its retries and dead letters, its traces.

(RocketMQ: MessageTrack of `messageTrackDetail`, and TraceView of `queryMsgTraceById`.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from reput_client.admin.groups import GroupAdmin
from reput_client.admin.undelivered import UndeliveredAdmin
from reput_client.errors import DamagedMessage
from reput_client.received import ReceivedMessage
from reput_protocol import properties as names
from reput_protocol.codes import ExpressionType, MessageModel
from reput_protocol.commands.group import SubscriptionData
from reput_protocol.commands.group_description import GroupDescription, GroupQueue, GroupSummary
from reput_protocol.errors import (
    BrokerError,
    FilterSyntaxError,
    GroupNotFound,
    NotFound,
    PermissionDenied,
    RequestNotSupported,
    TopicNotFound,
)
from reput_protocol.filter.tags import TagFilter
from reput_protocol.names import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    TRACE_TOPIC,
    dlq_topic,
    is_system_group,
    pop_retry_topic,
    retry_topic,
)
from reput_protocol.record.client_trace import ClientTrace, decode_client_traces
from reput_protocol.record.dead_letter import dead_letter_origin

_GROUPS_MAX: Final = 64
_COPIES_MAX: Final = 64
_ABSENT: Final = (TopicNotFound, GroupNotFound, NotFound, RequestNotSupported)
_WAITING_TOPICS: Final = (SCHEDULE_TOPIC, TIMER_TOPIC)


class TrackType(Enum):
    """How far a group is with a message (RocketMQ: TrackType, which has no `IN_FLIGHT`)."""

    CONSUMED = "CONSUMED"
    """The group has committed an offset beyond it."""
    CONSUMED_BUT_FILTERED = "CONSUMED_BUT_FILTERED"
    """The same, but its subscription does not match the message."""
    IN_FLIGHT = "IN_FLIGHT"
    """A member has pulled it, and the group has not committed it."""
    NOT_CONSUME_YET = "NOT_CONSUME_YET"
    """It is not pulled yet."""
    NOT_ONLINE = "NOT_ONLINE"
    """The same, and no member is online."""
    CONSUME_BROADCASTING = "CONSUME_BROADCASTING"
    """Each member keeps its own progress, which the broker does not know."""


class CopyKind(Enum):
    """What a copy of a message is for."""

    WAITING_RETRY = "WAITING_RETRY"
    """It is redelivered to its group later."""
    RETRY = "RETRY"
    DEAD_LETTER = "DEAD_LETTER"
    REPLAY = "REPLAY"
    """A dead letter that was sent to the topic that it came from."""


@dataclass(frozen=True, slots=True)
class MessageCopy:
    """A copy of a message that the broker has made for a group.

    Attributes:
        at_ms: when it was stored; of a waiting retry, when it is redelivered.
        attempts: redeliveries so far, this one included.
        reason: why the consumer gave it back, in its words; of a dead letter, why it is one.
        state: of a retry, how far the group is with it.
    """

    kind: CopyKind
    topic: str
    queue_id: int
    queue_offset: int
    offset_message_id: str
    at_ms: int
    attempts: int
    reason: str | None = None
    state: TrackType | None = None


@dataclass(frozen=True, slots=True)
class MessageTrack:
    """How far one group is with a message.

    Attributes:
        committed_offset: of the message's queue; None if it has committed none.
        client_id: the member that has the queue, or pulled from it last; "" if there is none.
        last_commit_timestamp: when the group committed in this queue last, in ms since 1970, by this broker since its
            start; None: not since then.
        copies: its retries and dead letters, the oldest first.
    """

    group: str
    state: TrackType
    committed_offset: int | None
    client_id: str
    last_commit_timestamp: int | None
    copies: list[MessageCopy]


@dataclass(frozen=True, slots=True)
class MessageStep:
    """One step of a message's way, for people.

    Attributes:
        at_ms: in ms since 1970; None if nothing says when.
        kind: `sent`, `stored`, `waiting`, `consumed`, `filtered`, `in_flight`, `not_consumed`, `broadcast`, `retry`,
            `dead_letter`, `replay` or `trace`.
        text: what happened, without group and client.
        group: the consumer group, or for a trace the group that it names.
        client: the client's id or address, as far as it is known.
        offset_message_id: of the copy that the step is about; None: it is about the message itself.
        is_client_time: whether the time is that of a client's clock.
    """

    at_ms: int | None
    kind: str
    text: str
    group: str | None = None
    client: str | None = None
    offset_message_id: str | None = None
    is_client_time: bool = False


@dataclass(frozen=True, slots=True)
class MessageHistory:
    """What is known of a message.

    Attributes:
        message: the message that a producer has sent; of a retry or a dead letter, its origin if that is still there.
        tracks: one for each group that subscribes to its topic or has an offset there, sorted by name.
        traces: what RocketMQ's clients with `enableMsgTrace` report of it, the oldest first.
        trace_parent: the OpenTelemetry context that it carries, or None.
        missing: what could not be asked for, and why.
    """

    message: ReceivedMessage
    tracks: list[MessageTrack]
    traces: list[ClientTrace]
    trace_parent: str | None
    missing: list[str] = field(default_factory=list)

    @property
    def steps(self) -> list[MessageStep]:
        """All of it in the order of time; what has no time is last."""
        found = [*_own_steps(self.message)]
        for track in self.tracks:
            found += _steps_of_track(track, self.message)
        found += map(_step_of_trace, self.traces)
        found.sort(key=lambda step: (step.at_ms is None, step.at_ms or 0))
        return found


class MessageHistoryAdmin(UndeliveredAdmin, GroupAdmin):
    """The method of `Admin` for the history of a message; errors as there."""

    async def message_history(self, offset_message_id: str) -> MessageHistory:
        """Return what the brokers know of a message: its groups, retries, dead letters and traces.

        Nothing is consumed, and no offset changes. It costs some requests for each group of the topic, of which at most
        64 are looked at. What the user may not see is left out; `missing` says so.

        Raises:
            InvalidMessage: not an offset message id.
            NotFound: no broker has that message.
        """
        look = _Look(self, await self.view_message(offset_message_id))
        await look.find_origin()
        await look.look_at_groups()
        await look.look_for_traces()
        return MessageHistory(
            look.message, look.tracks, look.traces, look.message.get_property("traceparent"), look.missing
        )


class _Look:
    """Collects one history."""

    def __init__(self, admin: MessageHistoryAdmin, message: ReceivedMessage) -> None:
        self._admin = admin
        self.message = message
        self.tracks: list[MessageTrack] = []
        self.traces: list[ClientTrace] = []
        self.missing: list[str] = []
        self._origin_group: str | None = None

    async def find_origin(self) -> None:
        """Continue with the message that a retry or a dead letter is a copy of, if it is still there."""
        message = self.message
        for prefix in (RETRY_PREFIX, DLQ_PREFIX):
            if message.topic.startswith(prefix):
                self._origin_group = message.topic.removeprefix(prefix)
        if self._origin_group is None:
            return
        origin = dead_letter_origin(message.properties, message.offset_message_id)
        if origin.topic is None:
            return
        for found in await self._find(origin.topic, origin.message_id, f"the messages of {origin.topic}"):
            if found.message_id == origin.message_id or found.offset_message_id == origin.message_id:
                self.message = found
                return
        first = message.get_property(names.ORIGIN_MESSAGE_ID)
        if first is not None:
            try:
                self.message = await self._admin.view_message(first)
            except (*_ABSENT, PermissionDenied):
                self.missing.append("the message that it is a copy of has expired")

    async def look_at_groups(self) -> None:
        """Collect the tracks."""
        message = self.message
        if message.topic in _WAITING_TOPICS:
            return
        try:
            groups = await self._admin.topic_groups(message.topic)
        except (*_ABSENT, PermissionDenied):
            groups = []
        groups = [group for group in groups if not is_system_group(group)]
        if self._origin_group is not None and self._origin_group not in groups:
            groups.insert(0, self._origin_group)
        if len(groups) > _GROUPS_MAX:
            self.missing.append(f"{len(groups) - _GROUPS_MAX} of {len(groups)} groups are not looked at")
        for group in groups[:_GROUPS_MAX]:
            try:
                described = await self._described(group, message.topic)
            except PermissionDenied:
                self.missing.append(f"group {group}: no permission")
                continue
            self.tracks.append(await self._track(group, described))

    async def _described(self, group: str, topic: str) -> GroupDescription:
        try:
            return await self._admin.describe_group(group, topic)
        except _ABSENT:
            return GroupDescription(GroupSummary(group))

    async def _track(self, group: str, described: GroupDescription) -> MessageTrack:
        message = self.message
        queue = _queue_of(message, described)
        copies = [
            copy
            for topic in (retry_topic(group), pop_retry_topic(message.topic, group), dlq_topic(group))
            for copy in await self._copies(topic, group)
        ]
        copies += await self._waiting_retries(group)
        copies.sort(key=lambda copy: (copy.at_ms, copy.attempts))
        return MessageTrack(
            group,
            _state(message, queue, described),
            None if queue is None or queue.committed_offset < 0 else queue.committed_offset,
            "" if queue is None else queue.client_id,
            None if queue is None or queue.last_commit_timestamp <= 0 else queue.last_commit_timestamp,
            copies,
        )

    async def _copies(self, topic: str, group: str) -> list[MessageCopy]:
        """Return the copies in a retry topic of a group, or its dead letters with their replays."""
        found = await self._find_copies(topic, f"the copies of group {group}")
        if not topic.startswith(RETRY_PREFIX):
            replays = [replay for each in found for replay in await self._replays(group, each)]
            return [*(_copy(CopyKind.DEAD_LETTER, each) for each in found), *replays]
        described = await self._described(group, topic) if found else None
        return [
            _copy(CopyKind.RETRY, each, _state(each, _queue_of(each, described), described))
            for each in found
            if described is not None
        ]

    async def _replays(self, group: str, letter: ReceivedMessage) -> list[MessageCopy]:
        offset, broker_name = letter.queue_offset, letter.broker_name or None
        try:
            found = await self._admin.replays(group, offset, offset + 1, broker_name=broker_name)
        except _ABSENT:
            return []
        except BrokerError as error:
            self.missing.append(f"the replays of group {group}: {error}")
            return []
        return [
            MessageCopy(
                CopyKind.REPLAY,
                replay.topic,
                replay.queue_id,
                replay.queue_offset,
                replay.offset_message_id,
                replay.replay_timestamp,
                0,
            )
            for replay in found.replays
        ]

    async def _find_copies(self, topic: str, what: str) -> list[ReceivedMessage]:
        """Return the messages of a topic that are copies of this one; by its keys if it has no unique id."""
        message = self.message
        unique_id = message.get_property(names.UNIQ_KEY)
        for key in (unique_id,) if unique_id else message.keys[:1]:
            return [
                found
                for found in await self._find(topic, key or "", what)
                if unique_id or found.get_property(names.ORIGIN_MESSAGE_ID) == message.offset_message_id
            ]
        return []

    async def _waiting_retries(self, group: str) -> list[MessageCopy]:
        key = self.message.get_property(names.UNIQ_KEY) or next(iter(self.message.keys), None)
        if key is None:
            return []
        copies: list[MessageCopy] = []
        for topic in (retry_topic(group), pop_retry_topic(self.message.topic, group)):
            try:
                waiting = await self._admin.list_delayed(topic=topic, key=key, max_messages=_COPIES_MAX)
            except (*_ABSENT, PermissionDenied):
                continue
            attempts = self.message.reconsume_times + 1
            copies += [
                MessageCopy(
                    CopyKind.WAITING_RETRY, topic, 0, 0, delayed.offset_message_id, delayed.deliver_timestamp, attempts
                )
                for delayed in waiting
            ]
        return copies

    async def look_for_traces(self) -> None:
        """Collect what RocketMQ's clients report."""
        unique_id = self.message.get_property(names.UNIQ_KEY)
        if unique_id is None:
            return
        for found in await self._find(TRACE_TOPIC, unique_id, "the traces of RocketMQ's clients"):
            try:
                traces = decode_client_traces(found.body)
            except DamagedMessage:
                continue
            self.traces += [trace for trace in traces if trace.message_id == unique_id]
        self.traces.sort(key=lambda trace: (trace.at_ms is None, trace.at_ms or 0))

    async def _find(self, topic: str, key: str, what: str) -> list[ReceivedMessage]:
        try:
            found = await self._admin.find_messages(topic, key, max_messages=_COPIES_MAX)
        except _ABSENT:
            return []
        except PermissionDenied:
            self.missing.append(f"{what}: no permission")
            return []
        if not found.complete:
            self.missing.append(f"{what}: the key index is being rebuilt")
        return list(_intact(found.messages))


def _intact(messages: Iterable[ReceivedMessage]) -> Iterator[ReceivedMessage]:
    for message in messages:
        try:
            message.properties  # noqa: B018 - raises for a damaged one
        except DamagedMessage:
            continue
        yield message


def _queue_of(message: ReceivedMessage, described: GroupDescription) -> GroupQueue | None:
    for queue in described.queues:
        if (queue.topic, queue.queue_id) == (message.topic, message.queue_id) and (
            not queue.broker_name or not message.broker_name or queue.broker_name == message.broker_name
        ):
            return queue
    return None


def _state(message: ReceivedMessage, queue: GroupQueue | None, described: GroupDescription) -> TrackType:
    if described.message_model is MessageModel.BROADCASTING:
        return TrackType.CONSUME_BROADCASTING
    if queue is not None and 0 <= message.queue_offset < queue.committed_offset:
        return TrackType.CONSUMED if _matches(message, described) else TrackType.CONSUMED_BUT_FILTERED
    if (
        queue is not None
        and queue.client_id
        and message.queue_offset < max(queue.committed_offset, 0) + queue.in_flight
    ):
        return TrackType.IN_FLIGHT
    return TrackType.NOT_CONSUME_YET if described.summary.members else TrackType.NOT_ONLINE


def _matches(message: ReceivedMessage, described: GroupDescription) -> bool:
    """Whether the present subscription of a group matches a message; without a subscription it may have."""
    for subscription in described.subscriptions:
        if subscription.topic == message.topic:
            return _subscription_matches(message, subscription)
    return True


def _subscription_matches(message: ReceivedMessage, subscription: SubscriptionData) -> bool:
    try:
        if subscription.expression_type == ExpressionType.SQL92:
            from reput_protocol.filter.sql.sql_filter import SqlFilter
            from reput_protocol.properties import encode_properties

            return SqlFilter.parse(subscription.sub_string).matches(encode_properties(message.properties))
        return TagFilter.parse(subscription.sub_string).matches_tag(message.tag)
    except (FilterSyntaxError, ModuleNotFoundError):
        return True


def _copy(kind: CopyKind, message: ReceivedMessage, state: TrackType | None = None) -> MessageCopy:
    properties = message.properties
    reason = properties.get(names.RETRY_REASON)
    if kind is CopyKind.DEAD_LETTER:
        why = dead_letter_origin(properties, message.offset_message_id).reason.replace("_", " ")
        reason = f"{why}: {reason}" if reason else why
    return MessageCopy(
        kind,
        message.topic,
        message.queue_id,
        message.queue_offset,
        message.offset_message_id,
        message.store_timestamp_ms,
        message.reconsume_times,
        reason,
        state,
    )


def _own_steps(message: ReceivedMessage) -> Iterator[MessageStep]:
    yield MessageStep(message.born_timestamp_ms, "sent", "sent", client=message.born_host, is_client_time=True)
    if message.topic in _WAITING_TOPICS:
        real = message.get_property(names.REAL_TOPIC) or "unknown"
        text = f"stored, waits to be delivered to {real}"
        yield MessageStep(message.store_timestamp_ms, "waiting", text)
        return
    place = f"stored in queue {message.queue_id} of {message.topic} at offset {message.queue_offset}"
    yield MessageStep(message.store_timestamp_ms, "stored", place)


_STATES: Final = {
    TrackType.CONSUMED: ("consumed", "consumed: the group has committed up to {committed}"),
    TrackType.CONSUMED_BUT_FILTERED: (
        "filtered",
        "passed: the subscription does not match, and the group has committed up to {committed}",
    ),
    TrackType.IN_FLIGHT: ("in_flight", "pulled and not committed; the group has committed up to {committed}"),
    TrackType.NOT_CONSUME_YET: ("not_consumed", "not consumed yet; the group has committed up to {committed}"),
    TrackType.NOT_ONLINE: (
        "not_consumed",
        "not consumed yet, and no member is online; the group has committed up to {committed}",
    ),
    TrackType.CONSUME_BROADCASTING: ("broadcast", "broadcasting: each member keeps its own progress"),
}
_RETRY_STATES: Final = {
    TrackType.CONSUMED: "consumed",
    TrackType.CONSUMED_BUT_FILTERED: "consumed",
    TrackType.IN_FLIGHT: "pulled and not committed",
    TrackType.NOT_CONSUME_YET: "not consumed yet",
    TrackType.NOT_ONLINE: "not consumed yet, and no member is online",
}


def _steps_of_track(track: MessageTrack, message: ReceivedMessage) -> Iterator[MessageStep]:
    kind, text = _STATES[track.state]
    committed = "nothing" if track.committed_offset is None else str(track.committed_offset)
    # The last commit of the queue is that of this message only if it is the last message that it covers.
    is_its_commit = track.committed_offset == message.queue_offset + 1
    yield MessageStep(
        track.last_commit_timestamp if track.state is TrackType.CONSUMED and is_its_commit else None,
        kind,
        text.format(committed=committed),
        track.group,
        track.client_id or None,
    )
    for copy in track.copies:
        because = f": {copy.reason}" if copy.reason else ""
        if copy.kind is CopyKind.RETRY:
            state = _RETRY_STATES.get(copy.state or TrackType.NOT_CONSUME_YET, "")
            text = f"redelivered, attempt {copy.attempts + 1}; {state}{because}"
            yield MessageStep(copy.at_ms, "retry", text, track.group, None, copy.offset_message_id)
        elif copy.kind is CopyKind.WAITING_RETRY:
            yield MessageStep(copy.at_ms, "retry", "is redelivered then", track.group, None, copy.offset_message_id)
        elif copy.kind is CopyKind.DEAD_LETTER:
            yield MessageStep(
                copy.at_ms, "dead_letter", f"dead letter{because}", track.group, None, copy.offset_message_id
            )
        else:
            text = f"replayed to {copy.topic}"
            yield MessageStep(copy.at_ms, "replay", text, track.group, None, copy.offset_message_id)


def _step_of_trace(trace: ClientTrace) -> MessageStep:
    took = "" if trace.cost_ms is None else f" in {trace.cost_ms} ms"
    ended = {None: "", True: " successfully", False: " and failed"}[trace.is_success]
    text = {
        "Pub": f"producer: sent{took}{ended}",
        "SubBefore": "consumer: begins" + (f", redelivered {trace.retry_times} times" if trace.retry_times else ""),
        "SubAfter": f"consumer: done{took}{ended}" + (f": it {trace.detail}" if trace.detail else ""),
        "EndTransaction": f"producer: ends its transaction, {trace.detail}",
        "Recall": f"producer: cancels it{ended}",
    }[trace.kind]
    return MessageStep(trace.at_ms, "trace", text, trace.group or None, trace.client_host or None, is_client_time=True)
