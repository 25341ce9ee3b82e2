"""Schedules, which send a message at the times of a cron expression: creating, changing and listing them. Reput's."""

from __future__ import annotations

from base64 import b64decode, b64encode
from datetime import datetime
from enum import StrEnum
from typing import Self

from msgspec import field

from reput_protocol.codes import RequestCode
from reput_protocol.commands.base import I32, I64, Body, CommandHeader, Kind, Members, Number, RequestType
from reput_protocol.names import BrokerName, TopicName
from reput_protocol.record.delays import moment_of
from reput_protocol.rights import Right

CATCH_UP_S = 86_400.0
"""The default of `ScheduleDefinition.catch_up_s`."""


class MissedTimes(StrEnum):
    """What a schedule sends for times at which no broker could send."""

    LATEST = "latest"
    """One message, for the latest of them."""
    ALL = "all"
    """A message for each of them, the oldest first, at most the latest 1,000."""


class ScheduleDefinition(Body):
    """Body of PUT_SCHEDULE: a schedule, and the message that it sends.

    Attributes:
        when: a cron expression of five fields, a nickname such as `@hourly`, or `@every 90s`.
        time_zone: IANA's name of the zone of the expression.
        body: of the message, in Base64.
        catch_up_s: seconds after which a missed time is not sent any more.
        replaces: whether a schedule of this name may exist, and is replaced.
    """

    name: str
    when: str
    topic: TopicName
    body: str = ""
    tag: str | None = None
    keys: list[str] = []
    properties: dict[str, str] = {}
    ordering_key: str | None = None
    priority: I64 | None = None
    time_zone: str = "UTC"
    catch_up_s: Number = CATCH_UP_S
    missed: MissedTimes = MissedTimes.LATEST
    replaces: bool = False

    @staticmethod
    def encode_body(body: bytes) -> str:
        """Return a message's body as it travels."""
        return b64encode(body).decode()

    @property
    def message_body(self) -> bytes:
        """The body of the message.

        Raises:
            ValueError: it is not Base64.
        """
        return b64decode(self.body, validate=True)


class ScheduleChange(StrEnum):
    """What is done with a schedule."""

    DELETE = "delete"
    PAUSE = "pause"
    RESUME = "resume"
    RUN = "run"
    """Send its message now, besides its times."""


class ChangeScheduleHeader(CommandHeader):
    """Header of CHANGE_SCHEDULE; `topic` is that of the schedule."""

    topic: TopicName
    name: str
    change: ScheduleChange


class ChangeScheduleResult(CommandHeader):
    """Answer to it: of `run`, where the message is stored."""

    msg_id: str | None = None
    queue_id: I32 | None = None
    queue_offset: I64 | None = None


class ListSchedulesHeader(CommandHeader):
    """Header of LIST_SCHEDULES: the schedules of one topic, or with one name, or all."""

    topic: TopicName | None = None
    name: str | None = None


class ScheduleState(StrEnum):
    """Whether a schedule sends as it should. The broker decides it."""

    ACTIVE = "active"
    """It sends as it should."""
    PAUSED = "paused"
    LATE = "late"
    """A message has been due for more than five seconds, and the broker tries to send it."""
    MISSED = "missed"
    """For its last time no message is sent, because no broker could send within `catch_up_s`."""
    FAILING = "failing"
    """It cannot send: its topic does not exist or takes no such message, or the broker does not understand it."""
    UNKNOWN = "unknown"
    """The broker is of a version that does not decide it."""

    @property
    def is_fault(self) -> bool:
        """Whether the schedule needs attention."""
        return self in (ScheduleState.LATE, ScheduleState.MISSED, ScheduleState.FAILING)


class ScheduleDescription(Members):
    """A schedule and how far it is. Times are ms since 1970.

    Attributes:
        broker_name: of the broker that has it.
        created_ms: when it was created, or replaced.
        next_ms: its next time; None if it is paused, has none within 50 years, or is not understood by the broker.
        last_ms: the last time for which a message was sent; None if there is none yet.
        last_message_id: offset message id of that message; None if the broker has not sent it in this run.
        sent: messages that the broker has sent for its times in this run.
        times_missed: times for which the broker has decided in this run that no message is sent.
        state: whether it sends as it should.
        reason: why it does not.
        since_ms: the first time for which it did not send, as far as the broker knows.
    """

    definition: ScheduleDefinition
    broker_name: BrokerName = ""
    is_paused: bool = False
    created_ms: I64 = 0
    next_ms: I64 | None = None
    last_ms: I64 | None = None
    last_message_id: str | None = field(default=None, name="lastMsgId")
    sent: I64 = 0
    times_missed: I64 = 0
    state: ScheduleState = ScheduleState.UNKNOWN
    reason: str = ""
    since_ms: I64 | None = None

    @property
    def next_time(self) -> datetime | None:
        """Its next time, in UTC."""
        return None if self.next_ms is None else moment_of(self.next_ms)

    @property
    def since_time(self) -> datetime | None:
        """The first time for which it did not send, in UTC."""
        return None if self.since_ms is None else moment_of(self.since_ms)

    @property
    def last_time(self) -> datetime | None:
        """The last time for which a message was sent, in UTC."""
        return None if self.last_ms is None else moment_of(self.last_ms)


class ScheduleList(Body):
    """Answer body of LIST_SCHEDULES, by name."""

    schedules: list[ScheduleDescription] = []

    @classmethod
    def of(cls, schedules: list[ScheduleDescription]) -> Self:
        """Return the body with what is found, sorted by name."""
        return cls(sorted(schedules, key=lambda one: one.definition.name))


# -- the requests ------------------------------------------------------------------------------------------------------

REQUESTS = (
    RequestType(
        RequestCode.PUT_SCHEDULE, body=ScheduleDefinition, topics=Right.ADMIN, kind=Kind.CHANGES, changes_tables=True,
        handler_checks="write on the topic; admin on the topic of the schedule that is replaced",
    ),
    RequestType(
        RequestCode.CHANGE_SCHEDULE, ChangeScheduleHeader, topics=Right.ADMIN, kind=Kind.CHANGES,
        changes_tables=True, handler_checks="to run it: write on the topic",
    ),
    RequestType(
        RequestCode.LIST_SCHEDULES, ListSchedulesHeader, topics=Right.DESCRIBE, kind=Kind.MASTER_ONLY,
        handler_checks="describe on the topic of each schedule; others are left out",
    ),
)  # fmt: skip
