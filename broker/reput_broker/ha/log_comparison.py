"""Whether the log of a slave is a prefix of its master's, and what to do if it is not.

Two logs agree up to the end of their last common epoch: that of the same number and start. There, the earlier of both
ends counts. RocketMQ's slaves compare only offsets: one whose offset happens to fit continues, even if its records
differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self, TypeAlias

from reput_broker.config.model import BrokerConfig
from reput_broker.ha.epochs import Epoch
from reput_broker.store.message_store import MessageStore
from reput_protocol.commands.replica import ReplicaState

_REMEDY: Final = "move the data directory of this broker away if it is to begin empty"


@dataclass(frozen=True, slots=True)
class OwnLog:
    """The log of this broker."""

    cluster: str
    broker_name: str
    epochs: Sequence[Epoch]
    min_offset: int
    end_offset: int
    file_size: int
    confirmed: int = 0
    """All before this offset is known to be confirmed, and is never cut."""

    @classmethod
    def of(
        cls, config: BrokerConfig, store: MessageStore, epochs: Sequence[Epoch], confirmed: int = 0
    ) -> Self:
        """Return the log of an open store."""
        return cls(
            config.cluster,
            config.broker_name,
            epochs,
            store.min_physical_offset,
            store.max_physical_offset,
            config.store.commit_log_file_size,
            confirmed,
        )

    @property
    def is_empty(self) -> bool:
        """Whether it holds no record."""
        return self.min_offset == self.end_offset


@dataclass(frozen=True, slots=True)
class Follow:
    """Copy from the end of this log on."""


@dataclass(frozen=True, slots=True)
class TruncateTo:
    """The log must end at this offset first: what follows there, the master does not have.

    Only if the master has the record before it, if there is one: two brokers that never met may have the same epochs.
    """

    offset: int


@dataclass(frozen=True, slots=True)
class SetAside:
    """The log cannot be continued; move it aside and copy the master's from its beginning."""

    reason: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """Change nothing: it may be the wrong master."""

    reason: str


Decision: TypeAlias = Follow | TruncateTo | SetAside | Refuse


def decide(own: OwnLog, master: ReplicaState) -> Decision:
    """Decide how a slave with this log follows a master that describes its own."""
    for what, mine, masters_own in (
        ("cluster", own.cluster, master.cluster),
        ("broker_name", own.broker_name, master.broker_name),
    ):
        if mine != masters_own:
            return Refuse(
                f"its {what} is {masters_own!r} and this broker's is {mine!r}; correct {what} or ha.master"
            )
    if own.file_size != master.file_size:
        return Refuse(
            f"its log files have {master.file_size} bytes and those of this broker {own.file_size}; "
            "set store.commit_log_file_size to the same on both"
        )
    last, masters = (
        max([number for number, _ in epochs], default=0) for epochs in (own.epochs, master.epochs)
    )
    if last > masters and not own.is_empty:
        return Refuse(
            f"its last epoch is {masters}, and this broker has copied or written epoch {last}: another broker has been "
            "the master since; make that one the master, or restart the old one to begin a later epoch"
        )
    if own.is_empty:
        if own.end_offset == 0:
            return Follow()
        if master.min_offset <= own.end_offset <= master.max_offset:
            return Follow()
        return SetAside(
            f"it has no record yet and begins at offset {own.end_offset}, and the master's log has offsets "
            f"{master.min_offset} to {master.max_offset}"
        )
    if not own.epochs:
        # Of an Apache master, or never a replica: only the last record tells whether the log is this master's.
        if master.min_offset <= own.end_offset <= master.max_offset:
            return Follow()
        return Refuse(
            f"this log has no epochs and ends at {own.end_offset}, and the master's has offsets {master.min_offset} to "
            f"{master.max_offset}: whether it is the same log cannot be told; {_REMEDY}"
        )
    theirs = [Epoch(*entry) for entry in master.epochs]
    common, end = _common(own, master)
    if end is None:
        return Refuse(
            f"the logs have no epoch in common (this broker's: {_text(own.epochs)}; the master's: {_text(theirs)}): "
            f"they are different histories; {_REMEDY}"
        )
    agree = f"they agree up to {end}{'' if common else ' at most'}"
    confirmed = min(own.confirmed, own.end_offset)
    if end < confirmed:
        return Refuse(
            f"{agree}, and this broker's log is confirmed up to {confirmed} (its epochs: {_text(own.epochs)}; the "
            f"master's: {_text(theirs)}): the engine that elects was restored from an older copy, or the master has "
            "lost what it had synced. To keep this log, stop the master, then run `reput broker promote NUMBER --force "
            "--server` with this broker's number and address; to keep the master's, run it with those of the master"
        )
    if end <= own.min_offset > 0:
        return SetAside(
            f"it has nothing in common with the master's: it begins at {own.min_offset}, and {agree}"
        )
    if end <= master.min_offset > 0:
        return SetAside(f"{agree}, but the master has deleted its log before {master.min_offset}")
    if end >= own.end_offset:
        return Follow()
    # There is no record to compare then. An election gives a later epoch only to a member of the group.
    is_elected = master.confirm_offset is not None and common is not None and masters > common.number
    if end == 0 and not is_elected:
        return Refuse(
            f"it has no record of this log, which ends at {own.end_offset}: it has lost them, or they are different "
            f"histories; {_REMEDY}"
        )
    return TruncateTo(end)


def lacks(own: OwnLog, other: ReplicaState) -> int | None:
    """Return up to where this log agrees with that of another member, if it lacks some of what is confirmed there."""
    confirmed = 0 if other.known_confirmed is None else other.known_confirmed[1]
    end = _common(own, other)[1]
    agreed = own.end_offset if end is None else end
    return agreed if agreed < confirmed else None


def _common(own: OwnLog, other: ReplicaState) -> tuple[Epoch | None, int | None]:
    """Return the last common epoch, and up to where the logs agree; None if that cannot be told."""
    theirs = [Epoch(*entry) for entry in other.epochs]
    common = max(
        (epoch for epoch in own.epochs if epoch in theirs), default=None, key=lambda epoch: epoch.number
    )
    if common is not None:
        return common, _end_of(common, own, other)
    return None, _end_of_forgotten(own, theirs, other.min_offset)


def _end_of(common: Epoch, own: OwnLog, master: ReplicaState) -> int:
    """Return where the last common epoch ends in the log where it ends first."""
    later = [
        start for epochs in (own.epochs, master.epochs) for number, start in epochs if number > common.number
    ]
    return min(own.end_offset, master.max_offset, *later)


def _end_of_forgotten(own: OwnLog, theirs: Sequence[Epoch], master_min_offset: int) -> int | None:
    """Return up to where the logs agree at most, if one side has forgotten the epochs that may be common, with that
    part of its log; None if there are none.
    """
    for older, newer, low in ((own.epochs, theirs, master_min_offset), (theirs, own.epochs, own.min_offset)):
        if older and newer and older[0].number < newer[0].number and newer[0].start_offset < low:
            return newer[0].start_offset
    return None


def _text(epochs: Sequence[Epoch]) -> str:
    shown = ", ".join(f"{epoch.number} from {epoch.start_offset}" for epoch in epochs[-4:])
    return shown if len(epochs) <= 4 else f"..., {shown}"
