"""Schedules of one broker: the requests that create or replace one (700090), change one (700091) and list them
(700092); the service that sends their messages when they are due; their figures.

For which times a schedule has sent is known from the log alone. When a tenure begins, the index is asked for the
message of its last time, of the time before, and so on, until one is found: everything until then was sent, or was
missed on purpose. From then on the service knows it. A message that a failover takes back is not found, and is sent
again; consumers have not seen it.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

import structlog
import trio
from msgspec.structs import replace

from reput_broker.observe.counters import ScheduleStats
from reput_broker.observe.metrics import ScheduleSources
from reput_broker.remoting.request import Handled, Processor, Put, Refusal, Request, Response, serves
from reput_broker.schedule.messages import (
    Content,
    InvalidTimes,
    ScheduledMessages,
    Times,
    between,
    size_max,
    times_of,
    unique_id_by_hand,
    unique_id_of,
)
from reput_broker.store.base.errors import StoreError
from reput_broker.store.base.results import PutResult, PutStatus
from reput_broker.tables.tables import Schedule
from reput_broker.tenure.core import Core
from reput_protocol.codes import RequestCode
from reput_protocol.commands import schedule as commands
from reput_protocol.errors import ErrorCode, InvalidMessage, ReputError
from reput_protocol.names import DLQ_PREFIX, RETRY_PREFIX, is_system_topic
from reput_protocol.record.layout import is_brokers_own
from reput_protocol.record.message_id import offset_message_id
from reput_protocol.record.record import decode_record
from reput_protocol.rights import Right

log = structlog.get_logger(__name__)

_POLL_S: Final = 1.0
"""A changed wall clock is noticed within this time."""
_RETRY_S: Final = 1.0
_SAVE_S: Final = 30.0
_ALL_MAX: Final = 1000
"""Missed times that are sent at most, and missed times that are counted at most."""
_TIMES_A_TURN: Final = 50
"""Times that are computed before other tasks run."""
_REASONS: Final = {
    "no_topic": "its topic {} does not exist",
    "refused": "its topic {} takes no messages, or not this one",
}
_SKEW_MS: Final = 60_000
"""How far the clock of the master before may have been ahead of this one's."""
_STORED_BEFORE_MS: Final = 3_600_000
"""How long before its time a message may seem to be stored: clocks may be set."""
_REFUSED: Final = (PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED)
_REPLACE: Final = "delete it, or replace it"
_LATE_MS: Final = 5000
"""As of delayed messages: see the alert DelayLate."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,126}")
_CATCH_UP_MIN_S: Final = 1.0
"""What is sent in time is a few milliseconds late."""
_CATCH_UP_MAX_S: Final = 366 * 86_400.0
_TEXT_MAX: Final = 256


class NotNow(ReputError):
    """Nothing can be sent, or it is unknown what was sent; the same is tried again."""


class ScheduleHealth(NamedTuple):
    """Whether a schedule sends as it should, why not, and the first time for which it did not."""

    state: commands.ScheduleState
    reason: str = ""
    since_ms: int | None = None


class Run:
    """How far one schedule is, in this tenure.

    Args:
        is_new: whether nothing can have been sent for the times since it was created, replaced or resumed.

    Raises:
        InvalidTimes, InvalidMessage: it has no times, or no message that can be sent.
    """

    def __init__(self, schedule: Schedule, *, is_new: bool) -> None:
        self.schedule = schedule
        definition = schedule.definition
        self.times: Times = times_of(definition.when, definition.time_zone, schedule.created_ms)
        self.content = Content(definition)
        self.catch_up_ms = int(definition.catch_up_s * 1000)
        self.done_ms = max(schedule.since_ms, schedule.last_ms)
        """No message is sent for this time and those before."""
        self.is_settled = is_new
        """Whether `done_ms` has been compared with the log."""
        self.next_ms = self.times.next(self.done_ms)
        self.last_ms = schedule.last_ms
        self.last_message_id: str | None = None
        self.sent = self.missed = 0
        self.passed_ms = 0
        """The last time for which it was decided that no message is sent, for another reason than that it is late."""
        self.last_reason = ""
        """Why the last time was missed; empty if it was not."""
        self.failing_since_ms: int | None = None
        """The first of the times that were missed since a message was sent."""
        self.waits_for = ""
        """Why it cannot send now; it is tried again."""

    def advance(self, time_ms: int) -> None:
        """Note that nothing is sent any more for this time and those before."""
        self.done_ms = max(self.done_ms, time_ms)
        self.next_ms = self.times.next(self.done_ms)

    def found(self, time_ms: int, message_id: str) -> None:
        """Note that the message for this time is in the log."""
        self.last_ms, self.last_message_id = time_ms, message_id
        self.recovered()
        self.advance(time_ms)

    def recovered(self) -> None:
        """Note that a message was sent, so that the times that were missed before need no attention."""
        self.last_reason, self.failing_since_ms = "", None


class ScheduleFeature:
    """Sends messages, in one tenure as master."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._store = core.store
        self._table = core.tables.schedules
        self._saver = core.tables.schedule_saver
        self._messages = ScheduledMessages(core)
        self._stats = ScheduleStats()
        self._limiter = trio.CapacityLimiter(1)
        self._begin_offset = core.store.max_physical_offset
        self._unsaved: deque[tuple[int, Run, int]] = deque()
        """The times of messages that the table does not have, with the end offsets of the messages."""
        self._changed = trio.Event()
        self._logged = ""
        self.runs: dict[str, Run] = {}
        self._not_understood: dict[str, str] = {}
        """Why a schedule has no run."""
        for schedule in self._table.all.values():
            self._begin(schedule, is_new=False)
        self.processors = (ScheduleProcessor(core, self, self._messages),)
        core.sources.schedules = ScheduleSources(self._stats, self.states, lambda: self.late_s)

    def _begin(self, schedule: Schedule, *, is_new: bool) -> None:
        name = schedule.definition.name
        try:
            run = Run(schedule, is_new=is_new)
        except ReputError as error:  # another version wrote it, or the machine lacks the time zone
            self.runs.pop(name, None)
            self._not_understood[name] = str(error)
            log.error("schedule_not_understood", schedule=name, detail=str(error), hint=_REPLACE)
            return
        self._not_understood.pop(name, None)
        before = self.runs.get(name)
        if before is not None:
            run.sent, run.missed, run.last_message_id = before.sent, before.missed, before.last_message_id
        self.runs[name] = run

    def changed(self, name: str) -> None:
        """Follow the table after a schedule was created, replaced, paused, resumed or deleted."""
        schedule = self._table.all.get(name)
        if schedule is None:
            self.runs.pop(name, None)
            self._not_understood.pop(name, None)
        else:
            self._begin(schedule, is_new=True)
        self._changed.set()

    def described(self, schedule: Schedule) -> commands.ScheduleDescription:
        """Return what clients are told about a schedule of the table: without times if it is not understood."""
        health = self.health(schedule)
        told = commands.ScheduleDescription(
            replace(schedule.definition, replaces=False),
            self._core.config.broker_name,
            schedule.is_paused,
            schedule.created_ms,
            last_ms=schedule.last_ms or None,
            state=health.state,
            reason=health.reason,
            since_ms=health.since_ms,
        )
        run = self.runs.get(schedule.definition.name)
        if run is None:
            return told
        return replace(
            told,
            next_ms=None if schedule.is_paused else run.next_ms,
            last_ms=run.last_ms or None,
            last_message_id=run.last_message_id,
            sent=run.sent,
            times_missed=run.missed,
        )

    def health(self, schedule: Schedule) -> ScheduleHealth:
        """Return whether a schedule of the table sends as it should. Decided here, and nowhere else."""
        definition = schedule.definition
        if schedule.is_paused:
            return ScheduleHealth(commands.ScheduleState.PAUSED)
        run = self.runs.get(definition.name)
        if run is None:
            why = self._not_understood.get(definition.name, "")
            return ScheduleHealth(commands.ScheduleState.FAILING, f"the broker does not understand it: {why}")
        reason = self._messages.why_not(definition.topic) or run.last_reason
        if reason == "late":
            text = f"no broker could send within its catch-up of {definition.catch_up_s:g} s"
            return ScheduleHealth(commands.ScheduleState.MISSED, text, run.failing_since_ms)
        if reason:
            return ScheduleHealth(
                commands.ScheduleState.FAILING, _REASONS[reason].format(definition.topic), run.failing_since_ms
            )
        if run.next_ms is not None and self._core.clock_ms() - run.next_ms > _LATE_MS:
            text = run.waits_for or "the broker sends later than it should"
            return ScheduleHealth(commands.ScheduleState.LATE, text, run.next_ms)
        return ScheduleHealth(commands.ScheduleState.ACTIVE)

    def states(self) -> Iterator[tuple[str, commands.ScheduleState]]:
        """Yield the name and the state of each schedule."""
        for name, schedule in self._table.all.items():
            yield name, self.health(schedule).state

    def sent_by_hand(self, name: str) -> None:
        """Note that the message of a schedule was sent, besides its times."""
        run = self.runs.get(name)
        if run is not None:
            run.recovered()

    @property
    def late_s(self) -> float:
        """How late the most overdue message is, in seconds; 0 if none is due."""
        next_ms = _next_ms(self._active())
        return 0.0 if next_ms is None else max(0, self._core.clock_ms() - next_ms) / 1000

    def _active(self) -> list[Run]:
        return [run for run in self.runs.values() if not run.schedule.is_paused]

    def tasks(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """Return the tasks, which run concurrently until cancelled."""
        return self.send, self.save

    # Sending

    async def send(self) -> None:
        """Send what is due, and retry while it cannot be sent."""
        if self.runs:  # those that are created later have sent nothing
            await self._until_readable()
        while True:
            self._changed = trio.Event()
            waiting: dict[Run, str] = {}
            for run in self._active():
                try:
                    if self._is_current(run):
                        await self._step(run)
                    run.waits_for = ""
                except NotNow as error:
                    waiting[run] = run.waits_for = str(error)
            if waiting:
                self._log_once(next(iter(waiting.values())))
            else:
                self._logged = ""
            next_ms = _next_ms([run for run in self._active() if run not in waiting])
            wait_s = _RETRY_S if waiting else math.inf
            if next_ms is not None:
                wait_s = min(wait_s, _POLL_S, max(0.0, (next_ms - self._core.clock_ms()) / 1000))
            with trio.move_on_after(wait_s):
                await self._changed.wait()

    async def _until_readable(self) -> None:
        """Wait until the index can have everything that the log had when the tenure began."""
        while True:
            try:
                await self._core.puts.progress.dispatched.reached(self._begin_offset)
                if self._store.options.index_enabled:
                    self._store.complete_index()
                return
            except (ReputError, OSError) as error:
                self._log_once(str(error))
                await trio.sleep(_RETRY_S)

    def _log_once(self, detail: str) -> None:
        if detail != self._logged and self.runs:
            self._logged = detail
            log.warning("schedules_wait", detail=detail, hint="the broker retries; late messages are sent then")

    async def _step(self, run: Run) -> None:
        now_ms = self._core.clock_ms()
        if not run.is_settled and run.next_ms is not None and run.next_ms <= now_ms + _SKEW_MS:
            await self._settle(run, now_ms)
        if run.next_ms is None or run.next_ms > now_ms:
            return
        for time_ms in await self._due(run, now_ms):
            await self._miss(run, time_ms - 1, "late")
            if self._is_current(run):
                try:
                    await self._send(run, time_ms)
                except NotNow:
                    raise
                except ReputError as error:  # others are sent nevertheless
                    log.error(
                        "schedule_not_understood",
                        schedule=run.schedule.definition.name,
                        detail=str(error),
                        hint=_REPLACE,
                    )
                    await self._miss(run, time_ms, "refused")
            await trio.lowlevel.checkpoint()
            if not self._is_current(run):
                return
        await self._miss(run, now_ms, "late")
        await trio.lowlevel.checkpoint()

    def _is_current(self, run: Run) -> bool:
        return self.runs.get(run.schedule.definition.name) is run

    async def _due(self, run: Run, now_ms: int) -> list[int]:
        """Return the times for which a message is to be sent now, in order."""
        after_ms = max(run.done_ms, now_ms - run.catch_up_ms - 1)
        wanted = _ALL_MAX if run.schedule.definition.missed is commands.MissedTimes.ALL else 1
        due: list[int] = []
        until_ms = now_ms
        while len(due) < wanted:
            time_ms = run.times.latest(after_ms, until_ms)
            if time_ms is None:
                break
            due.append(time_ms)
            until_ms = time_ms - 1
            if len(due) % _TIMES_A_TURN == 0:
                await trio.lowlevel.checkpoint()
        return due[::-1]

    async def _miss(self, run: Run, until_ms: int, reason: str) -> None:
        """Count the times until `until_ms` that are not done, and will not be sent."""
        missed: list[int] = []
        for time_ms in islice(between(run.times, run.done_ms, until_ms), _ALL_MAX):
            missed.append(time_ms)
            if len(missed) % _TIMES_A_TURN == 0:
                await trio.lowlevel.checkpoint()
        if not missed:
            return
        run.missed += len(missed)
        self._stats.missed[reason] += len(missed)
        run.advance(until_ms)
        if reason != "late":
            run.passed_ms = until_ms
        is_known, run.last_reason = run.last_reason == reason, reason
        if run.failing_since_ms is None:
            run.failing_since_ms = missed[0]
        if is_known:
            return
        log.warning(
            "schedule_times_missed",
            schedule=run.schedule.definition.name,
            reason=reason,
            times=len(missed),
            first_ms=missed[0],
            hint="see its catch_up and missed: reput schedule describe",
        )

    async def _send(self, run: Run, time_ms: int) -> None:
        definition = run.schedule.definition
        why_not = self._messages.why_not(definition.topic)
        if why_not is not None:
            await self._miss(run, time_ms, why_not)
            return
        record = self._messages.record(definition, run.content, unique_id_of(definition.name, time_ms), time_ms)

        def put() -> PutResult | None:
            if not self._is_current(run):
                return None  # it was changed while this waited
            result = self._store.put_record(record)
            if result.status is PutStatus.PUT_OK:
                self._core.puts.own.wrote()
                self._sent(run, time_ms, result)
            return result

        try:
            result = await self._core.puts.own.under_lock(size_max(record), put)
        except StoreError as error:
            raise NotNow(str(error)) from error
        if result is None or result.status is PutStatus.PUT_OK:
            return
        if result.status not in _REFUSED:
            raise NotNow(f"the store rejects messages: {result.status.name}")
        await self._miss(run, time_ms, "refused")

    def _sent(self, run: Run, time_ms: int, result: PutResult) -> None:
        run.found(time_ms, offset_message_id(self._store.options.host, result.physical_offset))
        run.sent += 1
        self._unsaved.append((result.end_offset, run, time_ms))
        topic = run.schedule.definition.topic
        self._stats.sent[topic] += 1
        self._stats.late_seconds.observe(max(0, result.store_timestamp_ms - time_ms) / 1000)
        self._core.counters.topics[topic].count_in(1, result.end_offset - result.physical_offset)

    # What was sent before

    async def _settle(self, run: Run, now_ms: int) -> None:
        """Look in the index for the last time for which a message was sent."""
        after_ms = run.done_ms
        time_ms = run.times.latest(after_ms, now_ms + _SKEW_MS)
        passed = 0
        while time_ms is not None and passed < _ALL_MAX:
            message_id = await self._find(run, time_ms)
            if message_id is not None:
                run.found(time_ms, message_id)
                break
            passed += time_ms <= now_ms  # of those that can be sent now
            time_ms = run.times.latest(after_ms, time_ms - 1)
        run.is_settled = True

    async def _find(self, run: Run, time_ms: int) -> str | None:
        """Return the offset message id of the message for a time; None if it is not in the log."""
        definition = run.schedule.definition
        if not self._store.options.index_enabled:
            raise NotNow("schedules find what they have sent by the index, which is disabled: set store.index")
        find = partial(
            self._store.find_by_unique_key,
            definition.topic,
            unique_id_of(definition.name, time_ms),
            max(0, time_ms - _STORED_BEFORE_MS),
            accept_head=is_brokers_own,
        )
        try:
            found = await trio.to_thread.run_sync(find, limiter=self._limiter)
        except (StoreError, OSError) as error:
            raise NotNow(
                f"the log cannot be read ({error}), so it is unknown which times of {definition.name!r} were sent"
            ) from error
        if found.record is not None:
            return decode_record(found.record, check_crc=False).offset_message_id
        if found.doubt is not None:
            raise NotNow(f"{found.doubt.value}, so it is unknown which times of {definition.name!r} were sent")
        return None

    # The table

    async def save(self) -> None:
        """Write into the table which times were sent, at intervals: what is longer ago is not asked of the log."""
        while True:
            await trio.sleep(_SAVE_S)
            self.note()
            try:
                await self._saver.save()
            except (ReputError, OSError) as error:
                log.warning("schedules_not_saved", detail=str(error), hint="check the disk; the save is retried")

    def note(self) -> None:
        """Enter into the table, unsaved, the times that are not to be sent again: those of messages that neither a
        failover nor a power cut takes back, and those that were missed on purpose.
        """
        sent: dict[str, tuple[Run, int]] = {}
        safe_offset = min(self._store.dispatched_offset, self._store.flushed_offset)
        while self._unsaved and self._unsaved[0][0] <= safe_offset:
            _, run, time_ms = self._unsaved.popleft()
            sent[run.schedule.definition.name] = run, time_ms
        for name, (run, time_ms) in sent.items():
            schedule = self._table.all.get(name)
            if schedule is not None and schedule.created_ms == run.schedule.created_ms:
                self._table.put(replace(schedule, last_ms=time_ms))
        for name, run in self.runs.items():
            schedule = self._table.all[name]
            if run.passed_ms > schedule.since_ms:
                self._table.put(replace(schedule, since_ms=run.passed_ms))


def _next_ms(runs: list[Run]) -> int | None:
    return min((run.next_ms for run in runs if run.next_ms is not None), default=None)


class ScheduleProcessor(Processor):
    """Creates, changes and lists schedules."""

    def __init__(self, core: Core, service: ScheduleFeature, messages: ScheduledMessages) -> None:
        self._core = core
        self._service = service
        self._messages = messages
        self._table = core.tables.schedules
        self._saver = core.tables.schedule_saver

    # Creating

    @serves(RequestCode.PUT_SCHEDULE)
    async def put(self, request: Request) -> Response:
        """Create or replace a schedule; it is on disk when this is answered. One that exists and is the same stays."""
        core, now_ms = self._core, self._core.clock_ms()
        definition = request.content(commands.ScheduleDefinition)
        topic = definition.topic
        request.check(Right.WRITE.value, topic)
        self._check(definition, now_ms)
        is_there = self._is_there(request, definition)
        if not is_there and core.topic_access.writable(topic, 0) is None:
            await core.topic_access.create_on_send(topic)
            core.topic_access.created(topic, 0)
            is_there = self._is_there(request, definition)  # another request may have created it meanwhile
        if not is_there:
            # No later than the first step of the service, which sends nothing for the times before.
            now_ms = core.clock_ms()
            self._table.put(Schedule(definition, now_ms, now_ms))
            self._service.changed(definition.name)
        await self._saver.save()
        return Response()

    def _is_there(self, request: Request, definition: commands.ScheduleDefinition) -> bool:
        """Return whether the same schedule exists already.

        Raises:
            Refusal: it cannot be created or replaced.
        """
        before = self._table.all.get(definition.name)
        if before is not None:
            if not request.may(Right.ADMIN, before.definition.topic):
                raise _duplicate(f"another schedule {definition.name!r} exists; choose another name")
            if replace(before.definition, replaces=definition.replaces) == definition:
                return True
            if not definition.replaces:
                raise _duplicate(
                    f"another schedule {definition.name!r} exists, which sends to topic {before.definition.topic!r}; "
                    "choose another name, or replace it (reput schedule create --replace)"
                )
        self._table.check_room(definition)
        return False

    def _check(self, definition: commands.ScheduleDefinition, now_ms: int) -> None:
        """Check all of a definition but that its topic exists.

        Raises:
            Refusal: it is not valid; nothing was changed.
        """
        if not self._core.store.options.index_enabled:
            raise _invalid("the broker finds what it has sent by the index, which is disabled; set store.index")
        if _NAME.fullmatch(definition.name) is None:
            raise _invalid(
                f"the name {definition.name[:80]!r} cannot be that of a schedule; it has 1 to 127 of the characters "
                "a-z A-Z 0-9 _ . : - and begins with a letter or digit"
            )
        if len(definition.when) > _TEXT_MAX:
            raise _invalid(f"the cron expression has {len(definition.when)} characters, and at most {_TEXT_MAX}")
        if not _CATCH_UP_MIN_S <= definition.catch_up_s <= _CATCH_UP_MAX_S:
            raise _invalid(f"catch_up is {definition.catch_up_s:g} s; it is 1 s to 366 d")
        topic = definition.topic
        if is_system_topic(topic) or topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            raise _invalid(f"topic {topic!r} belongs to the broker or to a group; name a topic of the application's")
        try:
            times = times_of(definition.when, definition.time_zone, now_ms)
        except InvalidTimes as error:
            raise _invalid(str(error)) from None
        if times.next(now_ms) is None:
            raise _invalid(f"the cron expression {definition.when!r} has no time within 50 years")
        try:
            size = len(Content(definition).body)
        except InvalidMessage as error:
            raise _invalid(str(error)) from None
        if size > self._core.store.options.message_bytes_max:
            raise Refusal(ErrorCode.TOO_LARGE, f"the body has {size} bytes, more than store.message_size_max")

    # Changing

    @serves(RequestCode.CHANGE_SCHEDULE)
    async def change(self, request: Request) -> Handled:
        """Delete, pause, resume or run a schedule; the change is on disk when this is answered."""
        header = commands.ChangeScheduleHeader.from_ext(request.ext)
        schedule = self._table.all.get(header.name)
        if schedule is None or schedule.definition.topic != header.topic:
            raise Refusal(ErrorCode.NOT_FOUND, f"topic {header.topic!r} has no schedule {header.name!r}; list them")
        if header.change is commands.ScheduleChange.RUN:
            return self._run(request, schedule.definition)
        if header.change is commands.ScheduleChange.DELETE:
            self._table.delete(header.name)
        elif schedule.is_paused != (header.change is commands.ScheduleChange.PAUSE):
            self._service.note()  # so that the last time is not forgotten
            schedule = self._table.all[header.name]
            since_ms = self._core.clock_ms() if schedule.is_paused else schedule.since_ms
            self._table.put(replace(schedule, is_paused=not schedule.is_paused, since_ms=since_ms))
        self._service.changed(header.name)
        await self._saver.save()
        return Response(0, commands.ChangeScheduleResult().to_ext(request.header_type))

    def _run(self, request: Request, definition: commands.ScheduleDefinition) -> Put:
        request.check(Right.WRITE.value, definition.topic)
        if self._core.topic_access.writable(definition.topic, 0) is None:
            raise Refusal(ErrorCode.NO_TOPIC, f"topic {definition.topic!r} of the schedule does not exist; create it")
        try:
            content = Content(definition)
        except InvalidMessage as error:  # another version wrote it
            raise _invalid(str(error)) from None
        record = self._messages.record(definition, content, unique_id_by_hand(definition.name), time_ms=None)

        def answer(result: PutResult) -> Response:
            self._service.sent_by_hand(definition.name)
            place = offset_message_id(self._core.store.options.host, result.physical_offset)
            told = commands.ChangeScheduleResult(place, record.queue_id, result.queue_offset)
            return Response(0, told.to_ext(request.header_type))

        put = partial(self._core.store.put_record, record)
        return Put(request, size_max(record), put, answer, definition.topic, self._core.puts.default_ack())

    # Listing

    @serves(RequestCode.LIST_SCHEDULES)
    def list(self, request: Request) -> Response:
        """Answer with the schedules of a topic, or all whose topics the user may see."""
        header = commands.ListSchedulesHeader.from_ext(request.ext)
        found = [
            self._service.described(schedule)
            for name, schedule in self._table.all.items()
            if header.name in (None, name)
            and header.topic in (None, schedule.definition.topic)
            and request.may(Right.DESCRIBE, schedule.definition.topic)
        ]
        return Response(0, body=commands.ScheduleList.of(found).to_json())


def _duplicate(text: str) -> Refusal:
    return Refusal(ErrorCode.DUPLICATE, text)


def _invalid(text: str) -> Refusal:
    return Refusal(ErrorCode.INVALID_ARGUMENT, f"{text}; nothing was changed")
