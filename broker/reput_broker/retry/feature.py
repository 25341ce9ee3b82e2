"""Retries and dead letters of a master: messages that consumers send back (36, RocketMQ:
AbstractSendMessageProcessor.consumerSendMsgBack), and replays of dead letters.
"""

from __future__ import annotations

import random
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Final, NamedTuple

import structlog
import trio

from reput_broker.delay.delayed_record import DelayRedirects
from reput_broker.remoting.request import (
    Confirmed,
    Handled,
    Processor,
    Put,
    Refusal,
    Request,
    Response,
    Result,
    handled,
    serves,
)
from reput_broker.retry.claimed_origins import Claim, ClaimedOrigins
from reput_broker.retry.send_back_deduplication import SEND_BACK_ID_MAX, DeduplicatedReturns, SendBackKey, is_id
from reput_broker.send.deduplication import Work
from reput_broker.send.retry_records import Returned, can_be_returned, fitted_properties, returned_message
from reput_broker.send.send_records import counted_topic, max_reconsume_times, note_dead_letter
from reput_broker.store.base.results import PutResult, PutStatus
from reput_broker.store.index.query import Doubt
from reput_broker.tenure.core import Core
from reput_broker.transactions.queue_reader import delivered_record_at
from reput_protocol import properties as names
from reput_protocol.codes import AckLevel, MessageSysFlag, Perm, RequestCode, ResponseCode
from reput_protocol.commands import dead_letters as commands
from reput_protocol.commands.consumers import SendBackHeader
from reput_protocol.commands.group import SubscriptionGroupConfig
from reput_protocol.commands.topic import TopicConfig
from reput_protocol.errors import ErrorCode, InvalidMessage
from reput_protocol.names import check_group, dlq_topic, retry_topic
from reput_protocol.properties import CRC_PROPERTY_BYTES
from reput_protocol.record.dead_letter import ReplayOf, dead_letter_origin, replayed_id
from reput_protocol.record.delays import priority_of
from reput_protocol.record.forwarding import own_properties
from reput_protocol.record.layout import index_hash
from reput_protocol.record.message_id import decode_offset_message_id, offset_message_id
from reput_protocol.record.record import Record, decode_record, encode_record
from reput_protocol.rights import Right

log = structlog.get_logger(__name__)

_SETTLE_S: Final = 5.0
_LOOKS_AT_ONCE: Final = 2
_FORGET_AT_ONCE: Final = 1024


class SendBackProcessor(Processor):
    """Stores messages for their next attempt, or as dead letters."""

    def __init__(self, core: Core, delay_redirects: DelayRedirects, deduplicated: DeduplicatedReturns) -> None:
        self._core = core
        self._topic_access = core.topic_access
        self._delay_redirects = delay_redirects
        self._deduplicated = deduplicated

    @serves(RequestCode.CONSUMER_SEND_MSG_BACK)
    def send_back(self, request: Request) -> Result:
        """Store the message for a later attempt, or as a dead letter. Its consumer need not consume it again."""
        header = SendBackHeader.from_ext(request.ext)
        if not is_id(header.send_back_id or ""):
            raise Refusal(
                ErrorCode.INVALID_ARGUMENT,
                f"sendBackId {header.send_back_id!r} is not valid; "
                f"use up to {SEND_BACK_ID_MAX} ASCII letters and digits",
            )
        config = self._core.group_access.find_or_create(header.group)
        if config.retry_queue_nums <= 0:
            return Response()
        if self._topic_access.known(retry_topic(header.group)) is None:
            return self._with_retry_topic(request, header, config)
        return self._send_back(request, header, config)

    async def _with_retry_topic(
        self, request: Request, header: SendBackHeader, config: SubscriptionGroupConfig
    ) -> Handled:
        await self._topic_access.create_internal(retry_topic(header.group), config.retry_queue_nums)
        return await handled(self._send_back(request, header, config))

    def _send_back(self, request: Request, header: SendBackHeader, config: SubscriptionGroupConfig) -> Result:
        topic = self._topic_access.known(retry_topic(header.group))
        if topic is not None and not topic.perm & Perm.WRITE:
            raise Refusal(ErrorCode.NO_PERMISSION, f"topic {topic.topic_name!r} is not writable; alter its permission")
        record = delivered_record_at(self._core.store, header.offset)
        if record is None or not can_be_returned(record.topic):
            raise Refusal(
                ErrorCode.NOT_FOUND,
                f"no message of a consumer is at log offset {header.offset}; it may have expired",
                response_code=int(ResponseCode.SYSTEM_ERROR),
            )
        request.check_topic_of_message("read", record.topic)
        key = SendBackKey(header.group, header.offset, header.send_back_id or "")
        returned = returned_message(
            record,
            header.group,
            retry_queue_id=random.randrange(config.retry_queue_nums),
            delay_level=header.delay_level,
            max_reconsume_times=max_reconsume_times(request, header.max_reconsume_times, config.retry_max_times),
            send_back_id=key.text,
            reason=header.reason,
        )
        look = bool(header.is_repeated)
        if not returned.is_dead_letter:
            delayed = self._delay_redirects.redirect(returned.record, returned.properties)
            assert delayed is not None, "it has a delay level"
            return self._store_it(request, key, returned, delayed, look)
        if self._topic_access.known(dlq_topic(header.group)) is None:
            return self._with_dead_letter_topic(request, key, returned, look)
        return self._store_it(request, key, returned, returned.record, look)

    async def _with_dead_letter_topic(
        self, request: Request, key: SendBackKey, returned: Returned, look: bool
    ) -> Handled:
        await self._topic_access.create_internal(dlq_topic(key.group))
        return await handled(self._store_it(request, key, returned, returned.record, look))

    def _store_it(self, request: Request, key: SendBackKey, returned: Returned, record: Record, look: bool) -> Result:
        def put() -> PutResult:
            result = self._core.store.put_record(record)
            if result.status is PutStatus.PUT_OK:
                self._count(key.group, returned)
            return result

        size = len(encode_record(record)) + 20
        puts = self._core.puts

        def make_put(work: Work) -> Put:  # after a look that may have waited
            ack = puts.ack_of_returned(puts.default_ack())
            return Put(request, size, work, lambda _: Response(), returned.record.topic, ack)

        return self._deduplicated.append(key, key.group, record, put, make_put, look=look)

    def _count(self, group: str, returned: Returned) -> None:
        counts = self._core.counters.retry
        counts.nacks[group] += 1
        if returned.is_dead_letter:
            note_dead_letter(self._core, group, returned.origin_topic, returned.record)
        else:
            counts.retries[group, counted_topic(self._topic_access, returned.origin_topic)] += 1


class RetryFeature:
    """Retries and dead letters.

    Attributes:
        deduplicated: stores messages that consumers send back, once each.
        claims: checks what they say about messages that they send to a retry topic themselves.
    """

    def __init__(self, core: Core, delay_redirects: DelayRedirects) -> None:
        self.deduplicated = DeduplicatedReturns(core)
        self.claims = ClaimedOrigins(core)
        self.processors = (SendBackProcessor(core, delay_redirects, self.deduplicated), ReplayProcessor(core))


class LetterMarks:
    """The replayed letters of one dead-letter topic, by log offset: 16 bytes each.

    Attributes:
        lock: held while a letter is looked up and replayed.
        is_complete: whether those that the log had when the tenure began are here.
    """

    def __init__(self) -> None:
        self.lock = trio.Lock()
        self.is_complete = False
        self._letters = array("q")
        self._copies = array("q")

    def copy_of(self, letter_offset: int) -> int | None:
        """Return the log offset of the message as which a letter was replayed; None if it was not."""
        at = bisect_left(self._letters, letter_offset)
        return self._copies[at] if at < len(self._letters) and self._letters[at] == letter_offset else None

    def note(self, letter_offset: int, copy_offset: int) -> None:
        """Note that a letter was replayed; if it was before, this replay counts."""
        at = bisect_left(self._letters, letter_offset)
        if at < len(self._letters) and self._letters[at] == letter_offset:
            self._copies[at] = copy_offset
        else:
            self._letters.insert(at, letter_offset)
            self._copies.insert(at, copy_offset)

    def count_from(self, letter_offset: int) -> int:
        """Return how many letters from a log offset on were replayed. Those before are gone, and are forgotten."""
        at = bisect_left(self._letters, letter_offset)
        if at >= _FORGET_AT_ONCE:
            del self._letters[:at], self._copies[:at]
            at = 0
        return len(self._letters) - at


class ReplayMarks:
    """The marks of all dead-letter topics, in one tenure as master."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._store = core.store
        self._begin_offset = core.store.max_physical_offset
        self._limiter = trio.CapacityLimiter(_LOOKS_AT_ONCE)
        self._by_topic: dict[str, LetterMarks] = {}

    async def of(self, topic: str) -> LetterMarks:
        """Return the marks of a dead-letter topic that exists.

        Raises:
            Refusal: it is not known which letters were replayed: for the moment (`NOT_READY`), or until the cause is
                repaired.
        """
        marks = self._by_topic.setdefault(topic, LetterMarks())
        if not marks.is_complete:
            async with marks.lock:
                if not marks.is_complete:
                    await self._load(topic, marks)
        return marks

    async def _load(self, topic: str, marks: LetterMarks) -> None:
        if not self._store.options.index_enabled:
            raise Refusal(
                ErrorCode.INVALID_ARGUMENT,
                "which dead letters were replayed is found by the index, which is disabled; set store.index",
            )
        await self._indexed()
        found = await trio.to_thread.run_sync(self._store.find_replays, topic, limiter=self._limiter)
        if found.doubt is not None:
            raise _unknown(found.doubt)
        for replay in reversed(found.replays):
            marks.note(replay.letter_offset, replay.physical_offset)
        marks.is_complete = True

    async def _indexed(self) -> None:
        """Return once the index has what the log had when the tenure began.

        Raises:
            Refusal: it takes too long, or there is no disk space for it.
        """
        with trio.move_on_after(_SETTLE_S):
            await self._core.puts.progress.dispatched.reached(self._begin_offset)
            self._core.puts.reput.complete_index("which dead letters were replayed")
            return
        raise Refusal(
            ErrorCode.NOT_READY,
            f"it is unknown which dead letters were replayed: the log is not readable to where it ended at the start "
            f"after {_SETTLE_S:.0f} s; ask again shortly",
        )


def _unknown(doubt: Doubt) -> Refusal:
    text = f"{doubt.value}, so it is unknown which dead letters were replayed"
    if doubt is Doubt.BEHIND:
        return Refusal(ErrorCode.NOT_READY, f"{text}; ask again shortly")
    return Refusal(
        ErrorCode.INTERNAL,
        f"{text}; stop the broker, follow what `reput store verify` reports, then run `reput store rebuild`",
    )


_READ_BYTES: Final = 8 << 20
"""How much of the log is read at once: 2 dead letters of the largest size, or all of most requests."""
_READS_AT_ONCE: Final = 2
_LETTERS_A_TURN: Final = 32
"""Messages that are stored before other tasks run."""
_TIME_TO_LIVE: Final = frozenset({names.EXPIRES_AFTER, names.EXPIRES_AT})
"""It was the original's; dead letters of RocketMQ's brokers still have it."""
_ELSEWHERE: Final = "send them elsewhere with --to TOPIC"
_ROOM: Final = 2048
"""More than a record has besides properties and body."""
_UNPROVEN: Final = (
    "no broker has stored it there, so its origin is not proven; name the topic to which it should be sent "
    "(reput dlq replay --to TOPIC)"
)


class _Letter(NamedTuple):
    """A dead letter that a request names, and that is in its queue."""

    queue_offset: int
    physical_offset: int
    size: int
    copy_offset: int | None
    """The log offset of the message as which it was replayed; None if it was not."""


class _Read(NamedTuple):
    """What was read of a dead letter: its record, or the message as which it was replayed."""

    letter: _Letter
    data: bytes | None
    """None if it was replayed, or cannot be read."""
    was_sent: bool = False
    replay: commands.Replay | None = None


class _Request(NamedTuple):
    """A request to replay."""

    request: Request
    header: commands.ReplayHeader
    letters_topic: str
    marks: LetterMarks


class ReplayProcessor(Processor):
    """Sends dead letters to where they came from, each once: 700100, and 700101, which asks for those that were.

    This is the one way of a dead letter to where it came from: the command line, the console and the Spark job ask for
    it.

    The message as which a dead letter is replayed names it, by a field and a property that no client can set. So it is
    the mark itself: it is stored with the message or not at all, slaves copy it, and the dead letter outlives neither a
    crash nor a failover without it, since it is before it in the log. All replays from a dead-letter topic have one key
    in the index, by which a tenure as master finds them once.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._store = core.store
        self._topics = core.topic_access
        self._marks = ReplayMarks(core)
        self._limiter = trio.CapacityLimiter(_READS_AT_ONCE)
        self._rotation = count()

    # Replaying

    @serves(RequestCode.REPLAY_DEAD_LETTERS)
    async def replay(self, request: Request) -> Response:
        """Send dead letters that were not replayed before, and answer once they are as durable as a send is."""
        header = commands.ReplayHeader.from_ext(request.ext)
        places = {place.queue_offset: place for place in request.content(commands.LetterPlaces).letters}
        if len(places) > commands.REPLAYED_AT_ONCE_MAX:
            raise Refusal(
                ErrorCode.INVALID_ARGUMENT,
                f"{len(places)} dead letters, and at most {commands.REPLAYED_AT_ONCE_MAX} are replayed by one request; "
                "send several",
            )
        topic = dlq_topic(check_group(header.group))
        self._topics.existing(topic)
        if header.topic is not None:
            self._topics.created(header.topic, 0)
        marks = await self._marks.of(topic)
        work = _Request(request, header, topic, marks)
        outcomes: dict[int, commands.ReplayedLetter] = {}
        sent: Counter[str] = Counter()
        end_offset = 0
        try:
            async with marks.lock:
                for some in self._parts(work, [*places.values()]):
                    for read in await trio.to_thread.run_sync(self._read, some, limiter=self._limiter):
                        result, outcome = await self._replay(work, read)
                        outcomes[outcome.queue_offset] = outcome
                        if read.was_sent and read.letter.copy_offset is not None:
                            end_offset = max(end_offset, read.letter.copy_offset + 1)
                        if result is not None:
                            sent[outcome.topic or ""] += 1
                            end_offset = max(end_offset, result.end_offset)
                            if sent.total() % _LETTERS_A_TURN == 0:
                                await trio.lowlevel.checkpoint()
        finally:
            if sent:  # what was sent is known even if the rest fails
                self._note(request, header.group, sent)
        # What another request has sent a moment ago may not be on disk either.
        await self._durable(end_offset)
        gone = (commands.ReplayedLetter(offset, commands.ReplayOutcome.GONE) for offset in places)
        answer = commands.ReplayResult([outcomes.get(letter.queue_offset, letter) for letter in gone])
        return Response(0, body=answer.to_json())

    def _parts(self, work: _Request, places: Sequence[commands.LetterPlace]) -> Iterator[list[_Letter]]:
        """Yield the letters that are in their queue, so many that they can be read together."""
        part: list[_Letter] = []
        size = 0
        for place in places:
            unit = self._store.queue_units(work.letters_topic, 0, place.queue_offset, 1)
            if not unit or place.physical_offset not in (None, unit[0].physical_offset):
                continue
            physical_offset = unit[0].physical_offset
            copy_offset = None if work.header.again else work.marks.copy_of(physical_offset)
            part.append(_Letter(place.queue_offset, physical_offset, unit[0].size, copy_offset))
            size += unit[0].size
            if size >= _READ_BYTES:
                yield part
                part, size = [], 0
        if part:
            yield part

    def _read(self, letters: Sequence[_Letter]) -> list[_Read]:
        """Read letters, or of those that were replayed the copies. Blocks."""
        return [self._read_one(letter) for letter in letters]

    def _read_one(self, letter: _Letter) -> _Read:
        if letter.copy_offset is not None:
            data = self._store.record_at(letter.copy_offset, cold=True)
            replay = None if data is None else _replay_in(decode_record(data, check_crc=False), letter)
            if data is None or replay is not None:
                return _Read(letter, None, True, replay)
        return _Read(letter, self._store.message_at(letter.physical_offset, cold=True))

    async def _replay(self, work: _Request, read: _Read) -> tuple[PutResult | None, commands.ReplayedLetter]:
        """Send one letter; return the result of the put, None if it was not sent, and the outcome."""
        offset = read.letter.queue_offset
        if read.was_sent:
            topic = None if read.replay is None else read.replay.topic
            return None, commands.ReplayedLetter(offset, commands.ReplayOutcome.SENT_BEFORE, topic, replay=read.replay)
        if read.data is None:
            is_gone = read.letter.physical_offset < self._store.min_physical_offset
            return None, commands.ReplayedLetter(
                offset, commands.ReplayOutcome.GONE if is_gone else commands.ReplayOutcome.DAMAGED
            )
        letter = decode_record(read.data, check_crc=False)
        found = letter.property_map()
        topic = work.header.topic or self._origin_of(letter, found, work.header.group)
        if topic is None:
            return None, commands.ReplayedLetter(offset, commands.ReplayOutcome.UNPROVEN, reason=_UNPROVEN)
        refused = self._why_not(work.request, topic)
        if refused is not None:
            return None, commands.ReplayedLetter(offset, refused[0], topic, refused[1])
        if work.header.dry_run:
            return None, commands.ReplayedLetter(offset, commands.ReplayOutcome.SENT, topic)
        self._core.groups.requesters.drop_foreign(work.request.client, found)
        record = self._record(letter, found, topic, ReplayOf(letter.physical_offset, offset, work.letters_topic))

        def put() -> PutResult:
            result = self._store.put_record(record)
            if result.status is PutStatus.PUT_OK:
                work.marks.note(letter.physical_offset, result.physical_offset)
            return result

        size = len(record.body) + len(record.properties) + _ROOM
        result = await self._core.puts.appender.append_or_refuse(size, put, topic)
        replay = commands.Replay(
            offset,
            topic,
            record.queue_id,
            result.queue_offset,
            offset_message_id(self._store.options.host, result.physical_offset),
            record.unique_key or "",
            result.store_timestamp_ms,
        )
        return result, commands.ReplayedLetter(offset, commands.ReplayOutcome.SENT, topic, replay=replay)

    def _origin_of(self, letter: Record, found: dict[str, str], group: str) -> str | None:
        """Return the topic that a letter came from; None if that is not proven.

        DLQ_REASON is only in what a broker of Reput has put there, with an origin that it knows. The dead letters of
        RocketMQ's brokers have none: what they say is true if the log still has the original.
        """
        origin = dead_letter_origin(found, letter.offset_message_id).topic
        if origin is None or names.DLQ_REASON in found:
            return origin
        try:
            _, at = decode_offset_message_id(found.get(names.ORIGIN_MESSAGE_ID, ""))
        except InvalidMessage:
            return None
        original = delivered_record_at(self._store, at)
        claim = Claim(group, found, letter.body, letter.flag, letter.sys_flag)
        is_original = original is not None and original.topic == origin and claim.is_of(original)
        return origin if is_original else None

    def _why_not(self, request: Request, topic: str) -> tuple[commands.ReplayOutcome, str] | None:
        """Return why nothing is sent to a topic for a user, and what to do; None if it is."""
        if not request.may(Right.WRITE, topic):
            return (
                commands.ReplayOutcome.NO_PERMISSION,
                f"the right {Right.WRITE} on topic {topic} is missing; {_ELSEWHERE}",
            )
        if self._topics.known(topic) is None:
            why = f"topic {topic} does not exist any more; reput topic create {topic}, or {_ELSEWHERE}"
            return commands.ReplayOutcome.NO_TOPIC, why
        if not self._topics.may_write(topic, 0):
            why = f"topic {topic} takes no messages; reput topic alter {topic} --permission rw, or {_ELSEWHERE}"
            return commands.ReplayOutcome.REFUSED, why
        return None

    def _record(self, letter: Record, found: dict[str, str], topic: str, replay_of: ReplayOf) -> Record:
        """Return a new message with the content of a letter and no attempts, which names the letter."""
        origin = dead_letter_origin(found, letter.offset_message_id)
        properties = {
            names.UNIQ_KEY: replayed_id(letter.offset_message_id),
            **{name: value for name, value in own_properties(found).items() if name not in _TIME_TO_LIVE},
            names.DLQ_ORIGIN_MESSAGE_ID: origin.message_id,
            names.REPLAY_OF: replay_of.text,
        }
        return Record(
            topic,
            letter.body,
            queue_id=self._queue_of(properties, self._topics.existing(topic)),
            flag=letter.flag,
            sys_flag=letter.sys_flag & MessageSysFlag.PUT_MASK,
            born_timestamp_ms=self._core.clock_ms(),
            born_host=self._store.options.host,
            prepared_transaction_offset=replay_of.prepared_offset,
            properties=fitted_properties(properties, topic, spare_bytes=CRC_PROPERTY_BYTES),
        )

    def _queue_of(self, properties: dict[str, str], config: TopicConfig) -> int:
        queues = max(1, config.write_queue_nums)
        ordering_key = properties.get(names.SHARDING_KEY)
        if ordering_key is not None:
            return index_hash(ordering_key) % queues  # as clients do
        priority = priority_of(properties.get(names.PRIORITY, ""))
        return next(self._rotation) % queues if priority is None else min(priority, queues - 1)

    def _note(self, request: Request, group: str, sent: Counter[str]) -> None:
        user = request.principal
        log.info(
            "dead_letters_replayed",
            group=group,
            topics=dict(sent),
            user=None if user is None else user.name,
            peer=request.client.peer,
        )

    async def _durable(self, end_offset: int) -> None:
        """Return once the log is on disk up to an offset, and copied as what a consumer sends back is.

        Raises:
            Refusal: it takes too long; it was sent.
        """
        puts = self._core.puts
        await puts.progress.flushed.reached(end_offset)
        ack = puts.ack_of_returned(puts.default_ack())
        if ack is Confirmed.CONFIRMED:
            await puts.progress.confirmed_to(end_offset)
        elif ack is AckLevel.REPLICATED:
            slave_s = self._core.config.ha.slave_timeout
            with trio.move_on_after(slave_s):
                await puts.progress.replicated.reached(end_offset)
                return
            raise Refusal(
                ErrorCode.REPLICA_TIMEOUT,
                f"the dead letters were sent, but copies took longer than ha.slave_timeout ({slave_s} s); ask again",
            )

    # Asking

    @serves(RequestCode.QUERY_REPLAYS)
    async def query(self, request: Request) -> Response:
        """Answer how many dead letters of a group were replayed, and which of a range."""
        header = commands.QueryReplaysHeader.from_ext(request.ext)
        topic = dlq_topic(check_group(header.group))
        self._topics.existing(topic)
        if header.end_offset > header.begin_offset:
            request.check(Right.READ, topic)
        marks = await self._marks.of(topic)
        low = self._store.min_offset_in_queue(topic, 0)
        high = self._store.max_offset_in_queue(topic, 0)
        begin = min(max(low, header.begin_offset), high)
        end = max(begin, min(header.end_offset, high, begin + commands.REPLAYED_AT_ONCE_MAX))
        answer = commands.Replays(kept=max(0, high - low), next_offset=end)
        first = self._store.queue_units(topic, 0, low, 1)
        if first:
            answer.replayed = marks.count_from(first[0].physical_offset)
        replayed: list[_Letter] = []
        while begin < end and (units := self._store.queue_units(topic, 0, begin, end - begin)):
            for at, unit in enumerate(units, begin):
                copy_offset = marks.copy_of(unit.physical_offset)
                if copy_offset is not None:
                    replayed.append(_Letter(at, unit.physical_offset, unit.size, copy_offset))
            begin += len(units)
        read = await trio.to_thread.run_sync(self._read, replayed, limiter=self._limiter) if replayed else []
        answer.replays = [one.replay for one in read if one.replay is not None]
        return Response(0, body=answer.to_json())


def _replay_in(copy: Record, letter: _Letter) -> commands.Replay | None:
    """Return the replay of a letter that a record is; None if it is another record."""
    replay_of = ReplayOf.of_properties(copy.properties, copy.prepared_transaction_offset)
    if replay_of is None or replay_of.physical_offset != letter.physical_offset:
        return None
    return commands.Replay(
        letter.queue_offset,
        copy.topic,
        copy.queue_id,
        copy.queue_offset,
        copy.offset_message_id,
        copy.unique_key or "",
        copy.store_timestamp_ms,
    )
