"""Schedules of one broker: the requests that create or replace one (700090), change one (700091) and list them
(700092); their service and their figures.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from msgspec.structs import replace

from reput_broker.observe.counters import ScheduleStats
from reput_broker.observe.metrics import ScheduleSources
from reput_broker.remoting.request import Handled, Processor, Put, Refusal, Request, Response, serves
from reput_broker.schedule.messages import Content, ScheduledMessages, size_max, unique_id_by_hand
from reput_broker.schedule.service import ScheduleService
from reput_broker.schedule.times import InvalidTimes, times_of
from reput_broker.store.base.results import PutResult
from reput_broker.tables.schedules import Schedule
from reput_broker.tenure import Core
from reput_protocol.codes import RequestCode
from reput_protocol.commands.schedule import (
    ChangeScheduleHeader,
    ChangeScheduleResult,
    ListSchedulesHeader,
    ScheduleChange,
    ScheduleDefinition,
    ScheduleList,
)
from reput_protocol.errors import ErrorCode, InvalidMessage
from reput_protocol.names import DLQ_PREFIX, RETRY_PREFIX, is_system_topic
from reput_protocol.record.message_id import offset_message_id
from reput_protocol.rights import Right

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,126}")
_CATCH_UP_MIN_S: Final = 1.0
"""What is sent in time is a few milliseconds late."""
_CATCH_UP_MAX_S: Final = 366 * 86_400.0
_TEXT_MAX: Final = 256


class ScheduleProcessor(Processor):
    """Creates, changes and lists schedules."""

    def __init__(self, core: Core, service: ScheduleService, messages: ScheduledMessages) -> None:
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
        definition = request.content(ScheduleDefinition)
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

    def _is_there(self, request: Request, definition: ScheduleDefinition) -> bool:
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

    def _check(self, definition: ScheduleDefinition, now_ms: int) -> None:
        """Check all of a definition but that its topic exists.

        Raises:
            Refusal: it is not valid; nothing was changed.
        """
        if not self._core.store.options.index_enabled:
            raise _invalid(
                "the broker finds what it has sent by the index, which is disabled; set store.index"
            )
        if _NAME.fullmatch(definition.name) is None:
            raise _invalid(
                f"the name {definition.name[:80]!r} cannot be that of a schedule; it has 1 to 127 of the characters "
                "a-z A-Z 0-9 _ . : - and begins with a letter or digit"
            )
        if len(definition.when) > _TEXT_MAX:
            raise _invalid(
                f"the cron expression has {len(definition.when)} characters, and at most {_TEXT_MAX}"
            )
        if not _CATCH_UP_MIN_S <= definition.catch_up_s <= _CATCH_UP_MAX_S:
            raise _invalid(f"catch_up is {definition.catch_up_s:g} s; it is 1 s to 366 d")
        topic = definition.topic
        if is_system_topic(topic) or topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            raise _invalid(
                f"topic {topic!r} belongs to the broker or to a group; name a topic of the application's"
            )
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
        header = ChangeScheduleHeader.from_ext(request.ext)
        schedule = self._table.all.get(header.name)
        if schedule is None or schedule.definition.topic != header.topic:
            raise Refusal(
                ErrorCode.NOT_FOUND, f"topic {header.topic!r} has no schedule {header.name!r}; list them"
            )
        if header.change is ScheduleChange.RUN:
            return self._run(request, schedule.definition)
        if header.change is ScheduleChange.DELETE:
            self._table.delete(header.name)
        elif schedule.is_paused != (header.change is ScheduleChange.PAUSE):
            self._service.note()  # so that the last time is not forgotten
            schedule = self._table.all[header.name]
            since_ms = self._core.clock_ms() if schedule.is_paused else schedule.since_ms
            self._table.put(replace(schedule, is_paused=not schedule.is_paused, since_ms=since_ms))
        self._service.changed(header.name)
        await self._saver.save()
        return Response(0, ChangeScheduleResult().to_ext(request.header_type))

    def _run(self, request: Request, definition: ScheduleDefinition) -> Put:
        request.check(Right.WRITE.value, definition.topic)
        if self._core.topic_access.writable(definition.topic, 0) is None:
            raise Refusal(
                ErrorCode.NO_TOPIC, f"topic {definition.topic!r} of the schedule does not exist; create it"
            )
        try:
            content = Content(definition)
        except InvalidMessage as error:  # another version wrote it
            raise _invalid(str(error)) from None
        record = self._messages.record(definition, content, unique_id_by_hand(definition.name), time_ms=None)

        def answer(result: PutResult) -> Response:
            self._service.sent_by_hand(definition.name)
            place = offset_message_id(self._core.store.options.host, result.physical_offset)
            told = ChangeScheduleResult(place, record.queue_id, result.queue_offset)
            return Response(0, told.to_ext(request.header_type))

        put = partial(self._core.store.put_record, record)
        return Put(request, size_max(record), put, answer, definition.topic, self._core.puts.default_ack())

    # Listing

    @serves(RequestCode.LIST_SCHEDULES)
    def list(self, request: Request) -> Response:
        """Answer with the schedules of a topic, or all whose topics the user may see."""
        header = ListSchedulesHeader.from_ext(request.ext)
        found = [
            self._service.described(schedule)
            for name, schedule in self._table.all.items()
            if header.name in (None, name)
            and header.topic in (None, schedule.definition.topic)
            and request.may(Right.DESCRIBE, schedule.definition.topic)
        ]
        return Response(0, body=ScheduleList.of(found).to_json())


def _duplicate(text: str) -> Refusal:
    return Refusal(ErrorCode.DUPLICATE, text)


def _invalid(text: str) -> Refusal:
    return Refusal(ErrorCode.INVALID_ARGUMENT, f"{text}; nothing was changed")


class ScheduleFeature:
    """Schedules, over an open storage."""

    def __init__(self, core: Core) -> None:
        messages, stats = ScheduledMessages(core), ScheduleStats()
        self._service = ScheduleService(core, messages, stats)
        self.processors = (ScheduleProcessor(core, self._service, messages),)
        core.sources.schedules = ScheduleSources(stats, self._service.states, lambda: self._service.late_s)

    def tasks(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """Return the background tasks."""
        return self._service.tasks()
