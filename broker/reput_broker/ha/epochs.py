"""The epochs of a log: which master wrote which part of it (RocketMQ: EpochFileCache, CheckpointFile).

An epoch begins whenever a broker begins to take messages as master: at the end that its log then has. A master that
lost the unsynced end of its log therefore begins a new epoch below the end of the one before, and a slave that still
has that end sees from the epochs where its log must end.

`epochFileCheckpoint` has RocketMQ's format, in lines: the number of entries; the checksum of all their lines; and of
each epoch its number and start, `NUMBER-START`.

From the epochs follows whether the log of a slave is a prefix of its master's, and what to do if it is not. Two logs
agree up to the end of their last common epoch: that of the same number and start. There, the earlier of both ends
counts. RocketMQ's slaves compare only offsets: one whose offset happens to fit continues, even if its records differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, Self, TypeAlias

from reput_broker.config.model import BrokerConfig
from reput_broker.store.base.errors import StoreDamaged
from reput_broker.store.base.file_io import replace_file
from reput_broker.store.message_store import MessageStore
from reput_protocol.commands.replica import ReplicaState
from reput_protocol.errors import ReputError
from reput_protocol.kernel.records import crc32

_REMEDY = "restore the file from a copy; or move it away, and the next start as master begins with epoch 1"
_EMPTY: Final = "move the data directory of this broker away if it is to begin empty"


class EpochBehind(ReputError):
    """An election gives an epoch that the log has passed. Nothing was changed."""


class Epoch(NamedTuple):
    """An epoch and the log offset where it begins."""

    number: int
    start_offset: int


@dataclass(eq=False, repr=False)
class EpochFile:
    """The epochs of the log of one store, in the order in which they began. Its methods block."""

    path: Path
    entries: tuple[Epoch, ...] = field(default=(), init=False)

    @property
    def last(self) -> int:
        """The highest number, 0 if there is none."""
        return max([epoch.number for epoch in self.entries], default=0)

    @property
    def exists(self) -> bool:
        """Whether an epoch was ever written."""
        return bool(self.entries)

    def load(self) -> None:
        """Read the file; a missing one has no entries.

        Raises:
            StoreDamaged: it is not such a file, or its checksum is wrong.
        """
        try:
            text = self.path.read_text("ascii")
        except FileNotFoundError:
            self.entries = ()
            return
        except UnicodeDecodeError:
            raise StoreDamaged(self.path, 0, "it is not text", _REMEDY) from None
        self.entries = decode_epochs(text, self.path)

    def begin(self, start_offset: int, min_offset: int, number: int = 0) -> Epoch:
        """Begin an epoch as master, durably.

        Args:
            start_offset: the end of the log.
            min_offset: where the log begins. The first epoch of a log that has none starts there.
            number: given by an election; 0 for the one after the last.

        Raises:
            EpochBehind: the number is not above all others.
        """
        if number and number <= self.last:
            raise EpochBehind(
                f"the election gives epoch {number}, but {self.path} has epoch {self.last} already: the engine has "
                "lost its state; restore its data, or set its epoch at least as high"
            )
        epoch = Epoch(number or self.last + 1, start_offset if self.entries else min_offset)
        self._write(_pruned((*self.entries, epoch), min_offset))
        return epoch

    def adopt(self, entries: Iterable[Epoch], end_offset: int) -> None:
        """Replace the epochs by those of the master that begin at or before the end of this log, durably."""
        found = tuple(epoch for epoch in entries if epoch.start_offset <= end_offset)
        if found != self.entries:
            self._write(found)

    def _write(self, entries: tuple[Epoch, ...]) -> None:
        replace_file(self.path, encode_epochs(entries).encode())
        self.entries = entries


def encode_epochs(entries: Iterable[Epoch]) -> str:
    """Return the text of a file with these entries."""
    lines = [f"{epoch.number}-{epoch.start_offset}\n" for epoch in entries]
    text = "".join(lines)
    return f"{len(lines)}\n{crc32(text.encode()) & 0x7FFF_FFFF}\n{text}"


def decode_epochs(text: str, path: Path) -> tuple[Epoch, ...]:
    """Return the entries of a file.

    Raises:
        StoreDamaged: the text is not that of such a file.
    """
    count, _, rest = text.partition("\n")
    checksum, _, body = rest.partition("\n")
    lines = body.splitlines()
    normal = "".join(f"{line}\n" for line in lines)
    if checksum != str(crc32(normal.encode()) & 0x7FFF_FFFF):
        raise StoreDamaged(path, len(count) + 1, "the checksum of its epochs is wrong", _REMEDY)
    if count != str(len(lines)):
        raise StoreDamaged(path, 0, f"it names {count!r} epochs and has {len(lines)}", _REMEDY)
    entries = []
    for line in lines:
        number, _, start = line.partition("-")
        if not (number.isdecimal() and start.isdecimal()):
            raise StoreDamaged(path, text.index(line), f"{line[:40]!r} is not an epoch", _REMEDY)
        entries.append(Epoch(int(number), int(start)))
    return tuple(entries)


def _pruned(entries: tuple[Epoch, ...], min_offset: int) -> tuple[Epoch, ...]:
    """Drop the epochs before the one that wrote the last byte before the beginning of the log.

    So nothing is dropped while the log begins at 0: an epoch that wrote nothing may have written more in another copy,
    and tells that both are the same log.
    """
    first = 0
    for index, epoch in enumerate(entries):
        if epoch.start_offset < min_offset:
            first = index
    return entries[first:]


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
    def of(cls, config: BrokerConfig, store: MessageStore, epochs: Sequence[Epoch], confirmed: int = 0) -> Self:
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
            return Refuse(f"its {what} is {masters_own!r} and this broker's is {mine!r}; correct {what} or ha.master")
    if own.file_size != master.file_size:
        return Refuse(
            f"its log files have {master.file_size} bytes and those of this broker {own.file_size}; "
            "set store.commit_log_file_size to the same on both"
        )
    last, masters = (max([number for number, _ in epochs], default=0) for epochs in (own.epochs, master.epochs))
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
            f"{master.max_offset}: whether it is the same log cannot be told; {_EMPTY}"
        )
    theirs = [Epoch(*entry) for entry in master.epochs]
    common, end = _common(own, master)
    if end is None:
        return Refuse(
            f"the logs have no epoch in common (this broker's: {_text(own.epochs)}; the master's: {_text(theirs)}): "
            f"they are different histories; {_EMPTY}"
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
        return SetAside(f"it has nothing in common with the master's: it begins at {own.min_offset}, and {agree}")
    if end <= master.min_offset > 0:
        return SetAside(f"{agree}, but the master has deleted its log before {master.min_offset}")
    if end >= own.end_offset:
        return Follow()
    # There is no record to compare then. An election gives a later epoch only to a member of the group.
    is_elected = master.confirm_offset is not None and common is not None and masters > common.number
    if end == 0 and not is_elected:
        return Refuse(
            f"it has no record of this log, which ends at {own.end_offset}: it has lost them, or they are different "
            f"histories; {_EMPTY}"
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
    common = max((epoch for epoch in own.epochs if epoch in theirs), default=None, key=lambda epoch: epoch.number)
    if common is not None:
        return common, _end_of(common, own, other)
    return None, _end_of_forgotten(own, theirs, other.min_offset)


def _end_of(common: Epoch, own: OwnLog, master: ReplicaState) -> int:
    """Return where the last common epoch ends in the log where it ends first."""
    later = [start for epochs in (own.epochs, master.epochs) for number, start in epochs if number > common.number]
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
