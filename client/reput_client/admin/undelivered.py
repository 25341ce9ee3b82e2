"""The part of `Admin` for messages that are in no topic of a consumer yet, or any more.

These are delayed messages, those of open transactions and of schedules, and dead letters.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from reput_client.admin.topics import TopicAdmin
from reput_client.preview import Preview
from reput_client.received import ReceivedMessage
from reput_protocol.codes import RequestCode, TransactionState
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
from reput_protocol.commands.delay import (
    CancelDelayedHeader,
    CancelledMessage,
    CancelResult,
    DelayedMessage,
    DelayedMessageList,
    ListDelayedHeader,
)
from reput_protocol.commands.schedule import (
    CATCH_UP_S,
    ChangeScheduleHeader,
    ChangeScheduleResult,
    ListSchedulesHeader,
    MissedTimes,
    ScheduleChange,
    ScheduleDefinition,
    ScheduleDescription,
    ScheduleList,
)
from reput_protocol.commands.transaction import (
    EndTransactionHeader,
    ListTransactionsHeader,
    OpenTransaction,
    OpenTransactions,
)
from reput_protocol.errors import ErrorCode, InvalidMessage, NotFound, RequestNotSupported, TopicNotFound
from reput_protocol.names import check_group, check_send_topic, check_topic, dlq_topic
from reput_protocol.printable import counted
from reput_protocol.record.dead_letter import dead_letter_origin
from reput_protocol.record.message import NOT_SERIALIZED, Message, MessageQueue
from reput_protocol.wire.header import Value

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
        spans = {name: (max(start, min(end, done.get(name, 0))), end) for name, (start, end) in self.spans.items()}
        return DeadLetters(self.topic, spans)


class UndeliveredAdmin(TopicAdmin):
    """The methods of `Admin` for delayed messages, open transactions, dead letters and schedules; errors as there."""

    # -- delayed messages --------------------------------------------------------------------------------------

    async def list_delayed(
        self, *, topic: str | None = None, key: str | None = None, max_messages: int = 1000
    ) -> list[DelayedMessage]:
        """Return delayed messages that are not delivered yet, the earliest first.

        Args:
            topic: only those for this topic.
            key: only those with this unique id or key.
            max_messages: upper bound.
        """

        async def read(name: str, count: int, cursor: str | None) -> tuple[Sequence[DelayedMessage], str | None]:
            page = await self.delayed_page(topic=topic, key=key, max_messages=count, cursor=cursor, broker_name=name)
            return page.messages, page.cursor

        return await self._from_masters(read, max_messages, lambda found: found.deliver_timestamp)

    async def delayed_page(
        self,
        *,
        topic: str | None = None,
        key: str | None = None,
        max_messages: int = 64,
        cursor: str | None = None,
        broker_name: str | None = None,
    ) -> DelayedMessageList:
        """Return a part of a broker's delayed messages: the earliest, or those from `cursor` on.

        There may be fewer than `max_messages`. It is the broker at the client's address, or the named broker's master.
        """
        topic = None if topic is None else check_topic(topic)
        ext = ListDelayedHeader(topic, key, max_messages, cursor or None).to_ext()
        what = "list of delayed messages"
        call = await self._ask_one(broker_name, RequestCode.LIST_DELAYED_MESSAGES, ext, what)
        return DelayedMessageList.from_json(call.body)

    async def preview_cancel_delayed(self, topic: str, key: str) -> Preview:
        """Return what `cancel_delayed` would do, with a row for each message that waits."""
        found = await self.list_delayed(topic=check_topic(topic), key=key)
        return Preview(
            f"{counted(len(found), 'delayed message')} for {topic} with the key {key}: "
            + ("never delivered" if found else "nothing waits"),
            ("that cannot be undone",) if found else (),
            ("message_id", "deliver_at", "size_bytes"),
            [
                (
                    message.unique_id or message.offset_message_id,
                    message.deliver_at.isoformat(timespec="milliseconds"),
                    message.size,
                )
                for message in found
            ],
            is_change=bool(found),
        )

    async def cancel_delayed(self, topic: str, key: str) -> list[CancelledMessage]:
        """Cancel the delayed messages for `topic` with this unique id or key; return the outcome for each.

        `CANCELLED` and `ALREADY_CANCELLED` are durable: the message is never delivered. `DELIVERED`: it was too late.

        Raises:
            NotFound: no broker knows such a message, in any state.
        """
        header = CancelDelayedHeader(check_topic(topic), key)
        answers = await self._ask_each(
            RequestCode.CANCEL_DELAYED_MESSAGE, header.to_ext(), f"cancel {key} of {topic}", absent=(NotFound,)
        )
        results = [CancelResult.from_json(call.body) for call in answers.values()]
        return [message for result in results for message in result.messages]

    # -- open transactions -------------------------------------------------------------------------------------

    async def list_transactions(
        self, *, topic: str | None = None, key: str | None = None, max_transactions: int = 1000
    ) -> list[OpenTransaction]:
        """Return transactions that are open, the oldest first.

        Args:
            topic: only those of messages for this topic.
            key: only the one with this unique id (the transaction id), or those with this key.
            max_transactions: upper bound.
        """
        topic = None if topic is None else check_topic(topic)

        async def read(name: str, count: int, cursor: int | None) -> tuple[Sequence[OpenTransaction], int | None]:
            page = await self.transaction_page(
                topic=topic, key=key, max_transactions=count, cursor=cursor or 0, broker_name=name
            )
            return page.transactions, page.cursor

        return await self._from_masters(read, max_transactions, lambda found: found.store_timestamp)

    async def transaction_page(
        self,
        *,
        topic: str | None = None,
        key: str | None = None,
        max_transactions: int = 64,
        cursor: int = 0,
        broker_name: str | None = None,
    ) -> OpenTransactions:
        """Return a part of a broker's open transactions: the oldest, or those from `cursor` on.

        There may be fewer than `max_transactions`. It is the broker at the client's address, or the named broker's
        master.
        """
        topic = None if topic is None else check_topic(topic)
        ext = ListTransactionsHeader(topic, key, max_transactions, cursor).to_ext()
        call = await self._ask_one(broker_name, RequestCode.LIST_TRANSACTIONS, ext, "open transactions")
        return OpenTransactions.from_json(call.body)

    async def open_transaction(self, topic: str, unique_id: str) -> OpenTransaction:
        """Return the open transaction of the message for `topic` with this unique id, its transaction id.

        Raises:
            NotFound: there is none, or it has ended.
        """
        for found in await self.list_transactions(topic=topic, key=unique_id):
            if found.unique_id == unique_id:
                return found
        raise NotFound(
            ErrorCode.NOT_FOUND, f"no transaction of {topic} with the id {unique_id!r} is open; it may have ended"
        )

    async def preview_end_transaction(self, topic: str, unique_id: str, *, commit: bool) -> Preview:
        """Return what `end_transaction` would do. Raises like `open_transaction`."""
        found = await self.open_transaction(topic, unique_id)
        age_s = max(0, round(time.time() - found.store_timestamp / 1000))
        what = "is delivered" if commit else "is never delivered"
        return Preview(
            f"message {unique_id} of {counted(found.size, 'byte')} {what} to consumers of {topic}",
            (
                f"producer group {found.producer_group} sent it {counted(age_s, 'second')} ago, and was asked about it "
                f"{counted(found.check_times, 'time')}",
                "its producer no longer decides; a later decision of the producer is rejected",
            ),
        )

    async def end_transaction(self, transaction: OpenTransaction, *, commit: bool) -> None:
        """Commit or roll back an open transaction in place of its producer.

        Returns once a commit is stored as any message of a producer is.

        Raises:
            TransactionEnded: it was decided otherwise before.
            NotFound: it is not open any more.
        """
        state = TransactionState.COMMIT if commit else TransactionState.ROLLBACK
        header = EndTransactionHeader(
            transaction.producer_group,
            transaction.queue_offset,
            transaction.commit_log_offset,
            state,
            from_transaction_check=True,  # it counts at any time, also while only the producer may end it
            msg_id=transaction.unique_id or "",
            topic=transaction.topic,
        )
        await self._session.ask_ok(
            RequestCode.END_TRANSACTION,
            header.to_ext(),
            what=f"end of transaction {transaction.unique_id}",
            queue=MessageQueue(transaction.topic, transaction.broker_name, transaction.queue_id),
        )

    # -- dead letters ------------------------------------------------------------------------------------------

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
        header = ReplayHeader(check_group(group), topic, again or None, dry_run or None).to_ext()
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
        header = QueryReplaysHeader(check_group(group), begin_offset, end_offset).to_ext()
        what = f"replayed dead letters of {group}"
        return Replays.from_json(await self._of_letters(broker_name, RequestCode.QUERY_REPLAYS, header, what, b""))

    async def _of_letters(
        self, broker_name: str | None, code: RequestCode, ext: Mapping[str, Value], what: str, body: bytes
    ) -> memoryview:
        timeout_s = max(_REPLAY_TIMEOUT_S, self._session.timeout_s)
        if broker_name is None:
            deadline = self._session.deadline(timeout_s)
            return (await self._session.ask_ok(code, ext, what=what, body=body, deadline=deadline)).body
        calls = await self._ask_each(code, ext, what, body, brokers=[broker_name], timeout_s=timeout_s)
        return calls[broker_name].body

    # -- schedules ---------------------------------------------------------------------------------------------

    async def create_schedule(
        self,
        name: str,
        when: str,
        message: Message,
        *,
        ordering_key: str | None = None,
        time_zone: str = "UTC",
        catch_up_s: float = CATCH_UP_S,
        missed: MissedTimes | str = MissedTimes.LATEST,
        replace: bool = False,
    ) -> None:
        """Have the broker send a message at times, once for each time, also over a failover.

        It is kept by the broker that has the schedule, or else by the first one, by name, that has the topic. One that
        exists and is the same stays as it is. On disk when this returns.

        Args:
            name: of the schedule; 1 to 127 of the characters a-z A-Z 0-9 _ . : -.
            when: a cron expression of five fields, a nickname such as `@hourly`, or `@every 90s`.
            message: without a delay, a time to live, a unique id and a flag; the body has at most 64 KiB.
            ordering_key: as for `Producer.send`.
            time_zone: IANA's name of the zone of the expression.
            catch_up_s: a time that was missed, because no broker ran, is sent until so many seconds later.
            missed: `latest`: of several missed times only the latest one is sent; `all`: each, at most 1,000.
            replace: whether another schedule of this name is replaced.

        Raises:
            InvalidMessage: the message cannot be that of a schedule.
            BrokerError: the expression is not valid, or another schedule has the name.
        """
        is_plain = message.delay is None or message.delay.is_priority
        if not is_plain or message.unique_id is not None or message.flag:
            raise InvalidMessage(
                "the message of a schedule has no delay, time to live, unique_id= or flag=; leave them out"
            )
        if message.body is NOT_SERIALIZED:
            raise InvalidMessage("the message of a schedule has a body=, not a value=")
        definition = ScheduleDefinition(
            name,
            when,
            message.topic,
            ScheduleDefinition.encode_body(bytes(message.body)),
            message.tag,
            [*message.keys],
            dict(message.properties),
            ordering_key,
            None if message.delay is None else int(message.delay.value),
            time_zone,
            catch_up_s,
            MissedTimes(missed),
            replace,
        )
        broker = await self._broker_for(name, message.topic)
        await self._ask_each(
            RequestCode.PUT_SCHEDULE, {}, f"create schedule {name}", definition.to_json(), brokers=[broker]
        )

    async def list_schedules(self, topic: str | None = None) -> list[ScheduleDescription]:
        """Return the schedules of all brokers, or those that send to a topic, by name."""
        header = ListSchedulesHeader(None if topic is None else check_topic(topic))
        return await self._schedules(header)

    async def describe_schedule(self, name: str) -> ScheduleDescription:
        """Return one schedule; raises `NotFound` without it."""
        found = await self._schedules(ListSchedulesHeader(name=name))
        if not found:
            raise NotFound(ErrorCode.NOT_FOUND, f"there is no schedule {name!r}")
        return found[0]

    async def delete_schedule(self, name: str) -> None:
        """Delete a schedule. What it has sent stays. Raises `NotFound` without it."""
        await self._change(name, ScheduleChange.DELETE)

    async def pause_schedule(self, name: str) -> None:
        """Pause a schedule until it is resumed. Raises `NotFound` without it."""
        await self._change(name, ScheduleChange.PAUSE)

    async def resume_schedule(self, name: str) -> None:
        """Have a schedule send again, from its next time on: nothing for the times of the pause. Raises `NotFound`
        without it.
        """
        await self._change(name, ScheduleChange.RESUME)

    async def run_schedule(self, name: str) -> str:
        """Send the message of a schedule once now, also if it is paused; return its offset message id.

        It is as durable as the default acknowledgement of the broker. Raises `NotFound` without the schedule.
        """
        result = await self._change(name, ScheduleChange.RUN)
        return result.msg_id or ""

    async def _change(self, name: str, change: ScheduleChange) -> ChangeScheduleResult:
        schedule = await self.describe_schedule(name)
        header = ChangeScheduleHeader(schedule.definition.topic, name, change)
        broker = schedule.broker_name
        calls = await self._ask_each(
            RequestCode.CHANGE_SCHEDULE, header.to_ext(), f"{change} schedule {name}", brokers=[broker]
        )
        return ChangeScheduleResult.from_ext(calls[broker].answer.ext)

    async def _schedules(self, header: ListSchedulesHeader) -> list[ScheduleDescription]:
        calls = await self._ask_each(
            RequestCode.LIST_SCHEDULES, header.to_ext(), "schedules", absent=(RequestNotSupported,)
        )
        found = [one for call in calls.values() for one in ScheduleList.from_json(call.body).schedules]
        return sorted(found, key=lambda one: one.definition.name)

    async def _broker_for(self, name: str, topic: str) -> str:
        """Return the broker that has a schedule, or the one that is to have it."""
        found = await self._schedules(ListSchedulesHeader(name=name))
        if found:
            return found[0].broker_name
        masters = sorted(await self._masters())
        try:
            having = await self.topic_configs(topic)
        except TopicNotFound:
            return masters[0]  # which creates it, if it may
        return next((broker for broker in masters if broker in having), masters[0])
