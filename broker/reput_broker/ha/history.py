"""Whether the log of a slave is a beginning of its master's, and what to do if it is not.

Two logs agree up to the end of their last common epoch: that of the same number and start. There, the earlier of both
ends counts. RocketMQ's slaves compare only offsets: one whose offset happens to fit copies on, whatever it holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from reput_broker.ha.epochs import Epoch
from reput_protocol.commands.replica import ReplicaState

_REMEDY: Final = "move the data directory of this broker away if it is to begin empty"


@dataclass(frozen=True, slots=True)
class OwnLog:
    """The log of a slave."""

    cluster: str
    broker_name: str
    epochs: Sequence[Epoch]
    min_offset: int
    end_offset: int
    file_size: int

    @property
    def is_empty(self) -> bool:
        """Whether it holds no record."""
        return self.min_offset == self.end_offset


@dataclass(frozen=True, slots=True)
class Follow:
    """Copy from this log offset on."""

    offset: int


@dataclass(frozen=True, slots=True)
class CutAt:
    """The log must end at this offset first: what follows there, the master does not have.

    Only if the master has the record before it: two brokers that never met may have the same epochs.
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


Decision: TypeAlias = Follow | CutAt | SetAside | Refuse


def decide(own: OwnLog, master: ReplicaState) -> Decision:
    """Decide how a slave with this log follows a master that describes its own."""
    for what, mine, theirs in (
        ("cluster", own.cluster, master.cluster),
        ("broker_name", own.broker_name, master.broker_name),
    ):
        if mine != theirs:
            return Refuse(
                f"its {what} is {theirs!r} and this broker's is {mine!r}; correct {what} or ha.master"
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
            return Follow(master.min_offset)
        if master.min_offset <= own.end_offset <= master.max_offset:
            return Follow(own.end_offset)
        return SetAside(
            f"it has no record yet and begins at offset {own.end_offset}, and the master's log has offsets "
            f"{master.min_offset} to {master.max_offset}"
        )
    if not own.epochs:
        # Of an Apache master, or never a replica: only the last record tells whether the log is this master's.
        if master.min_offset <= own.end_offset <= master.max_offset:
            return Follow(own.end_offset)
        return Refuse(
            f"this log has no epochs and ends at {own.end_offset}, and the master's has offsets {master.min_offset} to "
            f"{master.max_offset}: whether it is the same log cannot be told; {_REMEDY}"
        )
    common_end = _common_end(own, master)
    if common_end is None:
        return Refuse(
            f"the logs have no epoch in common (this broker's: {_text(own.epochs)}; the master's: "
            f"{_text([Epoch(*entry) for entry in master.epochs])}): they are different histories; {_REMEDY}"
        )
    if common_end < own.min_offset:
        return SetAside(
            f"it has nothing in common with the master's: it begins at {own.min_offset}, "
            f"and they agree up to {common_end}"
        )
    if common_end <= master.min_offset > 0:
        return SetAside(
            f"they agree up to offset {common_end}, but the master has deleted its log before {master.min_offset}"
        )
    return Follow(own.end_offset) if common_end >= own.end_offset else CutAt(common_end)


def _common_end(own: OwnLog, master: ReplicaState) -> int | None:
    """Return where the last common epoch ends in the log where it ends first; None if there is none."""
    theirs = [Epoch(*entry) for entry in master.epochs]
    common = max(
        (epoch for epoch in own.epochs if epoch in theirs), default=None, key=lambda epoch: epoch.number
    )
    if common is None:
        return None
    ends = [own.end_offset, master.max_offset]
    for epochs in (own.epochs, theirs):
        ends += [epoch.start_offset for epoch in epochs if epoch.number > common.number]
    return min(ends)


def _text(epochs: Sequence[Epoch]) -> str:
    shown = ", ".join(f"{epoch.number} from {epoch.start_offset}" for epoch in epochs[-4:])
    return shown if len(epochs) <= 4 else f"..., {shown}"
