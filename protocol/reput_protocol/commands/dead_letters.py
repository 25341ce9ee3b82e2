"""Dead letters: having the broker replay some, and asking which were replayed. Reput's."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Final

from msgspec import field

from reput_protocol.codes import RequestCode
from reput_protocol.commands.base import I32, I64, Body, CommandHeader, Kind, Members, RequestType
from reput_protocol.names import GroupName, TopicName
from reput_protocol.record.delays import moment_of
from reput_protocol.rights import Right

REPLAYED_AT_ONCE_MAX: Final = 256
"""Dead letters of one REPLAY_DEAD_LETTERS, and of the answer to one QUERY_REPLAYS."""


class ReplayHeader(CommandHeader):
    """Header of REPLAY_DEAD_LETTERS: send dead letters of a group, which the body names, once each.

    They go to `topic`, or each to the topic that it came from, which must be proven. `again`: also those that were
    replayed before. `dry_run`: send nothing, and answer what would be sent.
    """

    group: GroupName
    topic: TopicName | None = None
    again: bool | None = None
    dry_run: bool | None = None


class LetterPlace(Members):
    """A dead letter: its offset in the queue of dead letters, and, if known, its log offset.

    A dead letter with another log offset is another one: the topic was deleted and created again.
    """

    queue_offset: I64
    physical_offset: I64 | None = None


class LetterPlaces(Body):
    """Body of REPLAY_DEAD_LETTERS: at most `REPLAYED_AT_ONCE_MAX` dead letters, replayed in this order."""

    letters: list[LetterPlace] = []


class ReplayOutcome(StrEnum):
    """What has become of a dead letter that was to be replayed."""

    SENT = "SENT"
    """It was sent; of a dry run: it would be."""
    SENT_BEFORE = "SENT_BEFORE"
    """A replay has sent it before."""
    GONE = "GONE"
    """It has expired, or was deleted."""
    DAMAGED = "DAMAGED"
    """Its record in the log fails its checks."""
    UNPROVEN = "UNPROVEN"
    """It is not proven where it came from: a client has written it into the dead-letter topic itself."""
    NO_TOPIC = "NO_TOPIC"
    """The topic that it came from does not exist any more; it is not created."""
    NO_PERMISSION = "NO_PERMISSION"
    """The user may not send to the topic that it came from."""
    REFUSED = "REFUSED"
    """The topic that it came from takes no messages, or not this one."""


class Replay(Members):
    """The message as which a dead letter was replayed.

    Attributes:
        letter_offset: the dead letter's offset in its queue.
        replay_timestamp: when it was replayed, by the broker's clock, in ms since 1970.
    """

    letter_offset: I64
    topic: TopicName
    queue_id: I32
    queue_offset: I64
    offset_message_id: str = field(name="offsetMsgId")
    unique_id: str = field(name="uniqKey")
    replay_timestamp: I64

    @property
    def replayed_at(self) -> datetime:
        """When it was replayed, by the broker's clock, in UTC."""
        return moment_of(self.replay_timestamp)


class ReplayedLetter(Members):
    """The outcome for one dead letter.

    `topic` is where it goes, if that is known; `reason` says why it stays; `replay` is the message that was sent, now
    or before.
    """

    queue_offset: I64
    outcome: ReplayOutcome
    topic: TopicName | None = None
    reason: str | None = None
    replay: Replay | None = None


class ReplayResult(Body):
    """Answer body of REPLAY_DEAD_LETTERS: the outcomes in the order of the request. What was sent is on disk."""

    letters: list[ReplayedLetter] = []


class QueryReplaysHeader(CommandHeader):
    """Header of QUERY_REPLAYS: how many dead letters of a group were replayed, and which of `[begin, end)`.

    Offsets are those of the queue of dead letters; at most `REPLAYED_AT_ONCE_MAX` of them are looked at.
    """

    group: GroupName
    begin_offset: I64 = 0
    end_offset: I64 = 0


class Replays(Body):
    """Answer body of QUERY_REPLAYS.

    `kept` dead letters of the group exist, of which `replayed` were replayed. Those of the range were replayed as
    `replays`; the next range begins at `next_offset`.
    """

    kept: I64 = 0
    replayed: I64 = 0
    replays: list[Replay] = []
    next_offset: I64 = 0


REQUESTS: Final = (
    RequestType(
        RequestCode.REPLAY_DEAD_LETTERS, ReplayHeader, LetterPlaces, topics=Right.WRITE, groups=Right.READ,
        handler_checks="write on the topic that a dead letter came from", kind=Kind.CHANGES,
    ),
    RequestType(
        RequestCode.QUERY_REPLAYS, QueryReplaysHeader, groups=Right.DESCRIBE,
        handler_checks="read on the group to see those of a range", kind=Kind.MASTER_ONLY,
    ),
)  # fmt: skip
