"""The part of `Admin` for schedules."""

from __future__ import annotations

from typing import Final

from reput_client.admin.topics import TopicAdmin
from reput_protocol.codes import RequestCode
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
from reput_protocol.errors import ErrorCode, InvalidMessage, NotFound, RequestNotSupported, TopicNotFound
from reput_protocol.names import check_topic
from reput_protocol.record.message import NOT_SERIALIZED, Message
from reput_protocol.wire.header import HeaderType

_MSGPACK: Final = HeaderType.MSGPACK


class ScheduleAdmin(TopicAdmin):
    """The methods of `Admin` for schedules; errors as there."""

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
            RequestCode.CHANGE_SCHEDULE,
            header.to_ext(_MSGPACK),
            f"{change} schedule {name}",
            brokers=[broker],
        )
        return ChangeScheduleResult.from_ext(calls[broker].answer.ext)

    async def _schedules(self, header: ListSchedulesHeader) -> list[ScheduleDescription]:
        calls = await self._ask_each(
            RequestCode.LIST_SCHEDULES, header.to_ext(_MSGPACK), "schedules", absent=(RequestNotSupported,)
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
