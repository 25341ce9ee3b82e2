"""The log of a master, served to its slaves: how many copies they have (RocketMQ: DefaultHAService), and how far they
are behind, in bytes and in seconds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, TypeVar

import structlog
import trio
from typing_extensions import override

from reput_broker.config.model import BrokerConfig
from reput_broker.config.sections import HAConfig
from reput_broker.ha.frames import HEADER, HAProtocolError, Hello, ReportReader
from reput_broker.put.progress import LogProgress, Replica, Replicas
from reput_broker.store.base.errors import FileMissing
from reput_broker.store.message_store import MessageStore
from reput_protocol.errors import ReputError, leaves

log = structlog.get_logger(__name__)

_REPORT_BYTES: Final = 4096
_BUFFER_BYTES: Final = 256 * 1024
"""About as many bytes leave with one system call."""
_HEADER_BYTES: Final = HEADER.size
_SLAVES_MAX = 64
"""No more connections than this are served: each has a buffer of 256 KiB."""
_LOOK_S: Final = 0.25
_LOOK_ALONE_S: Final = 1.0
"""The same without a slave: one that comes is late by the time of a note that is as precise."""
_SAMPLES_MAX: Final = 4096


@dataclass(frozen=True, slots=True)
class OfferedLog:
    """The log of a master in one tenure, as its slaves copy it.

    Attributes:
        epoch: of the tenure, which a Reput slave must name.
        admit: awaited with each connection before anything else; raises HAProtocolError to refuse the slave.
    """

    store: MessageStore
    config: HAConfig
    progress: LogProgress
    epoch: int
    admit: Callable[[trio.abc.Stream], Awaitable[None]] | None = None


class HAConnection:
    """The connection of one slave: its reports, and the transfer of the log to it (RocketMQ: DefaultHAConnection).

    Args:
        peer: its address, for logs and status.
        on_hello: called after the slave's first report, before anything is sent.
    """

    def __init__(
        self, stream: trio.abc.Stream, peer: str, offered: OfferedLog, on_hello: Callable[[HAConnection], None]
    ) -> None:
        self.peer = peer
        self.member: int | None = None
        """The number of a Reput slave; None for one of RocketMQ."""
        self.acked_offset = -1
        """The slave has the log up to here; -1 before its first report."""
        self.next_offset = 0
        """The log has been sent up to here."""
        self._stream = stream
        self._offered = offered
        self._store = offered.store
        self._config = offered.config
        self._progress = offered.progress
        self._on_hello = on_hello
        self._scope = trio.CancelScope()
        self._end_reason = ""
        self._sent_at = trio.current_time()

    def close(self, reason: str) -> None:
        """End the connection; `run` raises HAProtocolError with this reason."""
        self._end_reason = self._end_reason or reason
        self._scope.cancel()

    async def run(self) -> None:
        """Serve the slave until its connection ends.

        Raises:
            HAProtocolError: it sent something wrong, was silent for too long, or cannot be served; or `close`.
            OSError, trio.BrokenResourceError: the connection broke.
        """
        with self._scope:
            async with self._stream, trio.open_nursery() as nursery:
                if self._offered.admit is not None:
                    await self._offered.admit(self._stream)
                reports = ReportReader()
                await self._begin(reports)
                nursery.start_soon(self._transfer)
                while True:
                    self._acknowledged((await self._reports(reports))[-1])
        if self._end_reason:
            raise HAProtocolError(self._end_reason)

    # -- from the slave ----------------------------------------------------------------------------------

    async def _reports(self, reader: ReportReader) -> list[int]:
        """Return the next reports, at least one."""
        while True:
            with trio.move_on_after(self._config.housekeeping_interval) as silence:
                data = await self._stream.receive_some(_REPORT_BYTES)
            if silence.cancelled_caught:
                raise HAProtocolError(
                    f"it has sent nothing for {self._config.housekeeping_interval:g} s (ha.housekeeping_interval)"
                )
            if not data:
                raise HAProtocolError("it has closed the connection")
            reports = reader.feed(bytes(data))
            if reports:
                return reports

    async def _begin(self, reader: ReportReader) -> None:
        """Read where the slave begins, and check that the log has that place."""
        reports = await self._reports(reader)
        offset = reports[0]
        if reader.hello is None:
            self.next_offset = offset or self._last_file()
        else:
            self._check_hello(reader.hello, offset)
            self.member = reader.hello.member
            self.next_offset = offset
        low, high = self._store.min_physical_offset, self._store.max_physical_offset
        if self.next_offset > high:
            raise HAProtocolError(
                f"its log ends at {offset}, beyond the end of this one, {high}: it holds what this master does not have"
            )
        if self.next_offset < low:
            raise HAProtocolError(
                f"its log ends at {offset}, but this one begins at {low}: files that it needs have been deleted"
            )
        self.acked_offset = offset
        self._on_hello(self)
        self._acknowledged(reports[-1])

    def _last_file(self) -> int:
        """Return where a slave of RocketMQ without data begins: at the last file of the log."""
        end = self._store.max_physical_offset
        return end - end % self._store.options.commit_log_file_size

    def _check_hello(self, hello: Hello, offset: int) -> None:
        """Check the identity that only a Reput slave sends."""
        epoch = self._offered.epoch
        if hello.epoch != epoch:
            raise HAProtocolError(
                f"it has compared its history with epoch {hello.epoch}, and this is epoch {epoch}; it asks again"
            )
        store = self._store
        if store.min_physical_offset <= offset < store.max_physical_offset and not store.is_boundary(offset):
            raise HAProtocolError(f"its log ends at {offset}, where no record of this log starts")

    def _acknowledged(self, offset: int) -> None:
        if self._end_reason:
            return  # it arrived before `close`, and its slave speaks on another connection now
        if not self.acked_offset <= offset <= self.next_offset:
            raise HAProtocolError(
                f"it reports log offset {offset} after {self.acked_offset}, "
                f"and was sent the log up to {self.next_offset}"
            )
        self.acked_offset = offset
        self._progress.replicas.acknowledged(self)

    # -- to the slave ---------------------------------------------------------------------------------------

    async def _transfer(self) -> None:
        """Send the log from `next_offset` on, and heartbeats while there is nothing more."""
        buffer, offered = memoryview(bytearray()), self._progress.offered
        while True:
            size = self._config.transfer_batch_size
            frames = max(1, _BUFFER_BYTES // size)
            if len(buffer) != frames * (_HEADER_BYTES + size):
                buffer = memoryview(bytearray(frames * (_HEADER_BYTES + size)))
            end = offered.offset
            if self.next_offset < end:
                await self._send_log(buffer, min(end, self._file_end()), size)
                continue
            quiet_until = self._sent_at + self._config.send_heartbeat_interval
            with trio.move_on_at(quiet_until):
                await offered.reached(end + 1)
                continue
            self._progress.offer()  # what no sync has followed
            if offered.offset > end:
                continue
            await self._send(memoryview(HEADER.pack(self.next_offset, 0)))

    def _file_end(self) -> int:
        size = self._store.options.commit_log_file_size
        return self.next_offset - self.next_offset % size + size

    async def _send_log(self, buffer: memoryview, end: int, size: int) -> None:
        """Send the log up to `end`, in the same file, as much as the buffer holds, in frames of up to `size` bytes."""
        offset, at = self.next_offset, 0
        parts: list[memoryview] = []
        while offset < end and at < len(buffer):
            length = min(size, end - offset)
            HEADER.pack_into(buffer, at, offset, length)
            at += _HEADER_BYTES
            parts.append(buffer[at : at + length])
            at += length
            offset += length
        try:
            if not self._store.read_for_replica(self.next_offset, parts, wait=False):
                await trio.to_thread.run_sync(self._read_cold, parts)
        except FileMissing:
            raise HAProtocolError(
                f"it is at log offset {self.next_offset}, and that file has been deleted; it fell too far behind"
            ) from None
        # The offset moves first: the slave's report may arrive before the last byte has left.
        self.next_offset = offset
        await self._send(buffer[:at])

    def _read_cold(self, parts: list[memoryview]) -> None:
        self._store.read_for_replica(self.next_offset, parts, wait=True)

    async def _send(self, data: memoryview) -> None:
        await self._stream.send_all(data)
        self._sent_at = trio.current_time()


class HAService:
    """Sends the log to every slave that connects, and receives each one's acknowledged offset."""

    def __init__(self, offered: OfferedLog) -> None:
        self._offered = offered
        self._slaves: list[HAConnection] = []
        self._waiting_for_hello: list[HAConnection] = []

    @property
    def slaves(self) -> tuple[HAConnection, ...]:
        """The slaves that have sent their first report, in the order in which they connected."""
        return tuple(self._slaves)

    async def serve(self, stream: trio.abc.Stream, peer: str) -> None:
        """Serve a slave until its connection ends. Errors of the connection are logged.

        If too many connections are open, the oldest one that has said nothing is closed.

        Args:
            peer: its address, `host:port`.
        """
        silent = self._waiting_for_hello
        is_full = len(self._slaves) + len(silent) >= _SLAVES_MAX
        if is_full and silent:
            silent.pop(0).close(f"{_SLAVES_MAX} connections are open, and it has not said where it begins")
        elif is_full:
            log.warning(
                "slave_refused",
                peer=peer,
                detail=f"{_SLAVES_MAX} connections are open",
                hint="close those that are not of slaves",
            )
            await trio.aclose_forcefully(stream)
            return
        connection = HAConnection(stream, peer, self._offered, self._begun)
        silent.append(connection)
        reason = ""
        try:
            await connection.run()
        except* ReputError as group:
            reason = "; ".join(str(error) for error in leaves(group))
        except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            reason = reason or "the connection broke"
        finally:
            if connection in silent:
                silent.remove(connection)
            if connection in self._slaves:
                self._slaves.remove(connection)
                self._offered.progress.replicas.gone(connection)
            if reason:  # else this broker stops
                log.warning(
                    "slave_gone",
                    peer=peer,
                    member=connection.member,
                    acked_offset=connection.acked_offset,
                    detail=reason,
                    hint="it connects again; if it does not, see its log",
                )

    def _begun(self, connection: HAConnection) -> None:
        """Count a slave from its first report on, and end its earlier connection."""
        if connection not in self._waiting_for_hello:
            return  # it was closed in this moment
        for other in self.slaves:
            if connection.member is not None and other.member == connection.member:
                other.close(f"slave {connection.member} has connected again from {connection.peer}")
                self._slaves.remove(other)
        self._waiting_for_hello.remove(connection)
        self._slaves.append(connection)
        log.info(
            "slave_connected",
            peer=connection.peer,
            member=connection.member,
            offset=connection.next_offset,
            behind_bytes=self._offered.store.max_physical_offset - connection.next_offset,
        )


class Copies(Replicas):
    """How many copies of the log there are without an election: any slaves count (RocketMQ: inSyncReplicas)."""

    def __init__(self, service: HAService, progress: LogProgress, config: BrokerConfig) -> None:
        self._service = service
        self._progress = progress
        self._config = config.ha
        self._is_sync = config.store.flush == "sync"

    @override
    def moved(self) -> None:
        needed, progress = self._config.copies_if_replicated - 1, self._progress
        acked = sorted([slave.acked_offset for slave in copies_among(self._service.slaves)], reverse=True)
        if len(acked) < needed:
            return
        position = acked[needed - 1]
        progress.replicated.advance(min(position, progress.flushed.offset) if self._is_sync else position)

    @override
    def acknowledged(self, slave: Replica) -> None:
        self.moved()

    @override
    def refusal(self) -> str | None:
        needed, slaves = self._config.copies_if_replicated - 1, copies_among(self._service.slaves)
        low = self._progress.committed.offset - self._config.max_gap_not_in_sync
        in_sync = sum([slave.acked_offset >= low for slave in slaves])
        if in_sync >= needed:
            return None
        text = f"slaves in sync: {in_sync}, needed: {needed}, connected: {len(slaves)}"
        return f"{text}; start them, lower ha.in_sync_replicas, or ask for flushed or page_cache"


class Slave(Protocol):
    """A connected slave (see `HAConnection`)."""

    peer: str
    member: int | None
    acked_offset: int
    next_offset: int


S = TypeVar("S", bound=Slave)


def copies_among(slaves: Iterable[S]) -> list[S]:
    """Return the connections that count as a copy each, of all in the order in which they were made.

    RocketMQ's slaves do not say who they are, and may connect again before this side has noticed the end of the earlier
    connection. So of those from one machine only the last one counts.
    """
    copies: dict[int | str, S] = {}
    for slave in slaves:
        copies[slave.peer.rpartition(":")[0] if slave.member is None else slave.member] = slave
    return list(copies.values())


class SlaveProgress(NamedTuple):
    """How far one slave is."""

    peer: str
    member: int | None
    """Its number in the group; None for one of RocketMQ."""
    acked_offset: int
    next_offset: int
    lag_bytes: int
    lag_s: float
    """Age of the oldest byte that it does not have; 0 if it has all."""
    bytes_per_s: float
    is_in_sync: bool


class LogTimes:
    """When the log grew beyond which offset, to the precision of the notes."""

    def __init__(self) -> None:
        self._ends: list[int] = []
        self._times: list[float] = []

    def note(self, end: int, now_s: float) -> None:
        """Note the end of the log."""
        if self._ends and end <= self._ends[-1]:
            return
        self._ends.append(end)
        self._times.append(now_s)
        if len(self._ends) > _SAMPLES_MAX:  # the older half becomes half as precise
            half = _SAMPLES_MAX // 2
            self._ends[:half], self._times[:half] = self._ends[:half:2], self._times[:half:2]

    def behind_s(self, offset: int, now_s: float) -> float:
        """Return how long the log has been longer than `offset`; 0 if it is not."""
        place = bisect_right(self._ends, offset)
        return now_s - self._times[place] if place < len(self._ends) else 0.0


class MasterLog:
    """The master's log, as its slave knows it.

    Args:
        own_end: returns the end of its own log.
    """

    def __init__(self, own_end: Callable[[], int]) -> None:
        self.end = 0
        """Its end in the last answer of the master."""
        self._own_end = own_end
        self._times = LogTimes()

    def note_end(self, end: int) -> None:
        """Note the end that the master has reported."""
        self.end = end
        self._times.note(end, trio.current_time())

    @property
    def lag_bytes(self) -> int:
        """Bytes of it that are known to be missing here."""
        return max(0, self.end - self._own_end())

    @property
    def lag_s(self) -> float:
        """How long ago the first of them was written at most; 0 if none is missing."""
        return self._times.behind_s(self._own_end(), trio.current_time())


@dataclass(eq=False, repr=False)
class ReplicationProgress:
    """The progress of all slaves of a master, looked at four times a second; without any, once.

    Args:
        log_end: returns the end of the log.
        slaves: returns those that are connected.
        members: returns the in-sync set of an election; None without one, where every slave counts that is not too
            far behind.
    """

    _log_end: Callable[[], int]
    _slaves: Callable[[], Sequence[Slave]]
    _config: HAConfig
    _members: Callable[[], Collection[int]] | None = None
    _times: LogTimes = field(default_factory=LogTimes, init=False)
    _rates: dict[Slave, tuple[int, float]] = field(default_factory=dict, init=False)

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            self.look()
            await trio.sleep(_LOOK_S if self._slaves() else _LOOK_ALONE_S)

    def look(self) -> None:
        """Note where the log and the slaves are now."""
        self._times.note(self._log_end(), trio.current_time())
        rates = {}
        for slave in self._slaves():
            before, rate = self._rates.get(slave, (slave.acked_offset, 0.0))
            # The mean of about a second.
            rates[slave] = slave.acked_offset, 0.75 * rate + 0.25 * (slave.acked_offset - before) / _LOOK_S
        self._rates = rates

    @property
    def copies_in_sync(self) -> int:
        """Copies of the log that are in sync, the master's own included."""
        if self._members is not None:
            return len(self._members())
        low = self._log_end() - self._config.max_gap_not_in_sync
        return 1 + sum(slave.acked_offset >= low for slave in copies_among(self._slaves()))

    def slaves(self) -> list[SlaveProgress]:
        """Return the progress of every slave, the one that is furthest first."""
        now_s, end = trio.current_time(), self._log_end()
        low = end - self._config.max_gap_not_in_sync
        members = None if self._members is None else self._members()
        found = []
        for slave in self._slaves():
            acked = max(0, slave.acked_offset)
            lag = max(0, end - acked)
            found.append(
                SlaveProgress(
                    slave.peer,
                    slave.member,
                    acked,
                    slave.next_offset,
                    lag,
                    self._times.behind_s(acked, now_s) if lag else 0.0,
                    self._rates.get(slave, (0, 0.0))[1],
                    acked >= low if members is None else slave.member in members,
                )
            )
        return sorted(found, key=lambda slave: slave.lag_bytes)
