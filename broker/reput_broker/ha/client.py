"""A slave: copies the log of its master (RocketMQ: DefaultHAClient).

Before each connection to the log of a Reput master, the slave compares its history with the master's
(`epochs.py`). RocketMQ's masters do not describe theirs. In any case, the last record of this log must be the
one that the master has there.

What arrives is appended as whole, checked records, so that this log always ends with one. The slave reports what cannot
be taken back: with `flush = "sync"` what is synced, else what is appended.
"""

from __future__ import annotations

from array import array
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from math import inf
from typing import Final, NamedTuple, NoReturn
from zlib import crc32

import structlog
import trio

from reput_broker.ha.admission import Group, old_proof_frame, prove
from reput_broker.ha.epochs import Epoch, EpochFile, OwnLog, Refuse, SetAside, TruncateTo, decide
from reput_broker.ha.frames import REPORT, HAProtocolError, Hello, TransferReader, encode_hello
from reput_broker.ha.master_proof import MasterClient, MasterNotProven
from reput_broker.ha.service import MasterLog
from reput_broker.namesrv.members import GroupMembers
from reput_broker.remoting.client import RemoteUnreachable, dial
from reput_broker.store.base.options import StoreOptions
from reput_broker.store.log.walk import can_be_topic
from reput_broker.tenure.core import Core, Master
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.commands.query import ViewMessageHeader
from reput_protocol.commands.replica import QueryReplicaStateHeader, ReplicaAdmission, ReplicaState
from reput_protocol.errors import ReputError, leaves
from reput_protocol.kernel.records import BLANK, INVALID, RECORD, checksum_faults, scan_records
from reput_protocol.kernel.tables import runs
from reput_protocol.record.layout import BLANK_BYTES
from reput_protocol.record.scan import STORE_TIMESTAMP_MS, WIDTH
from reput_protocol.wire.header import HeaderType

log = structlog.get_logger(__name__)

_OVERHEAD_BYTES: Final = 64 * 1024
"""More than a record has in addition to its body."""
_TOPICS_MAX: Final = 10_000
_BUFFER_BYTES: Final = 512 * 1024
_RECEIVE_BYTES: Final = 256 * 1024
_ASK_TIMEOUT_S: Final = 3.0
_RETRY_S: Final = 0.2
_REFUSED_RETRY_S: Final = 5.0
_CONFIRM_INTERVAL_S: Final = 0.5
_LOST_S: Final = 5.0
"""Time without a master that can be reached, after which it is lost; with an election that is the lease."""
_MEMBERS_INTERVAL_S: Final = 5.0
"""Interval at which a master without an election is asked for its state."""

_OTHER_RECORD: Final = (
    "it does not have the record of this log at offset {}: they are different histories, or the master has "
    "deleted that file; move the data directory of this broker away to begin with an empty one"
)

_BROKEN: Final = (RemoteUnreachable, OSError, trio.BrokenResourceError, trio.ClosedResourceError)


class LogItem(NamedTuple):
    """Records, or a blank record with all that follows it in its file."""

    offset: int
    data: memoryview
    """Valid until the next call of `ReceivedLog`."""
    stored_ms: int = 0
    """Store time of the last record; 0 for a blank one."""
    last_record_offset: int = -1
    """Where the last record starts; -1 for a blank one."""


class ReceivedLog:
    """Collects bytes of a master's log from an offset on, and divides them into what can be appended: whole, checked
    records.

    A master sends bytes without regard to records. A slave that appended them as they come would end in the middle of a
    record after a kill, or after the connection broke, and could not be promoted without losing its end.

    Args:
        options: of the store that they are for.
        offset: where the first byte belongs.
    """

    def __init__(self, options: StoreOptions, offset: int) -> None:
        self.offset = offset
        """Everything before this offset was dropped."""
        self._file_size = options.commit_log_file_size
        self._record_bytes_max = options.message_bytes_max + _OVERHEAD_BYTES
        # Kept from one call to the next: what has arrived and was not dropped is `[start, end)` of it.
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._start = 0
        self._end = 0
        self._topics: set[bytes] = set()

    def add(self, data: memoryview) -> None:
        """Add bytes that follow those added before."""
        size = len(data)
        if self._end + size > len(self._buffer):
            self._make_room(size)
        self._buffer[self._end : self._end + size] = data
        self._end += size

    def _make_room(self, size: int) -> None:
        """Move what there is to the beginning, of a larger buffer if necessary."""
        rest = self._buffer[self._start : self._end]
        target = self._buffer
        if len(rest) + size > len(target):
            target = memoryview(bytearray(max(2 * len(target), len(rest) + size)))
        target[: len(rest)] = rest
        self._buffer = target
        self._start, self._end = 0, len(rest)

    def take(self) -> LogItem | None:
        """Return what can be appended next; None if more bytes are needed for that.

        Raises:
            HAProtocolError: what has arrived is not a log, or could not be stored here.
        """
        room = self._file_size - self.offset % self._file_size
        data = self._buffer[self._start : min(self._end, self._start + room)]
        if not data:
            return None
        table, stop, status, size, reason = scan_records(data, 0, len(data), self.offset)
        if stop:
            self._check(data, table, stop, room)
            last = len(table) - WIDTH
            return LogItem(self.offset, data[:stop], table[last + STORE_TIMESTAMP_MS], self.offset + table[last])
        if status == INVALID:
            raise self._refused(0, reason)
        if status == BLANK:
            if size != room:
                raise self._refused(0, f"a blank record names {size} bytes, but {room} are left in the file")
            return LogItem(self.offset, data) if len(data) == room else None
        assert status != RECORD, "the bytes end within a record"
        if size > room - BLANK_BYTES:
            raise self._refused(0, f"a record of {size} bytes does not fit into the {room} bytes left in the file")
        if size > self._record_bytes_max:
            raise self._refused(0, f"a record has {size} bytes; raise store.message_size_max to that of the master")
        return None

    def drop(self, size: int) -> None:
        """Drop this number of bytes from the beginning, after they have been appended."""
        self.offset += size
        self._start += size
        if self._start == self._end:
            self._start = self._end = 0

    def _check(self, data: memoryview, table: array[int], stop: int, room: int) -> None:
        faults = checksum_faults(data, table)
        if faults:
            row, reason = faults[0]
            raise self._refused(table[WIDTH * row], reason)
        if stop > room - BLANK_BYTES:
            raise self._refused(table[-WIDTH], "the record leaves no room for the blank one at the end of its file")
        for topic, _, first, _, _ in runs(data, table):
            if topic not in self._topics:
                if not can_be_topic(topic):
                    raise self._refused(table[WIDTH * first], f"the record there has topic {topic[:80]!r}")
                if len(self._topics) >= _TOPICS_MAX:
                    self._topics.clear()
                self._topics.add(topic)

    def _refused(self, position: int, reason: str) -> HAProtocolError:
        return HAProtocolError(f"what it sends for log offset {self.offset + position} cannot be stored: {reason}")


class MasterRefused(ReputError):
    """This slave cannot follow that master. Nothing was changed."""


class HAClient:
    """Copies the log of the current tenure's master until cancelled.

    Args:
        epochs: of this log; they become the master's.
        master_log: receives the end of the master's log.
        members: of the replica group; receives those that the master names.
        on_reopen: called with what must be done to the store before its log can be continued: the log
            truncated to an offset, or moved aside if that is None; and why. It notes that and ends this client, or
            raises.
    """

    def __init__(
        self,
        core: Core,
        epochs: EpochFile,
        master_log: MasterLog,
        members: GroupMembers,
        *,
        on_reopen: Callable[[int | None, str], Awaitable[None]],
    ) -> None:
        self.state = "no master is known"
        """What it does, or why it does not copy, for status."""
        self.is_connected = False
        self._unreached: tuple[Master, float] | None = None
        """The master that could not be reached, and since when."""
        self.received_at: float | None = None
        """When it last received something from a master; None before."""
        self._store = core.store
        self._epochs = epochs
        self._config = core.config
        self._lock = core.puts.lock
        self._master_log = master_log
        self._on_appended = core.puts.wrote
        self._tenures = core.tenures
        self._member = core.config.broker_id
        self._members = members
        self._on_reopen = on_reopen
        self._credentials = core.config.access.credentials()
        self._admission: str | None = None
        self._progress = progress = core.puts.progress
        self._durable = progress.flushed if core.config.store.flush == "sync" else progress.committed
        self._master_epochs: list[Epoch] = []
        self._next_epoch_at: float = inf

    @property
    def lost_master(self) -> Master | None:
        """The master that could not be reached for a while, so that it has failed; one that refuses has not."""
        if self._unreached is None or self.is_connected:
            return None
        master, since = self._unreached
        election = self._config.election
        lost_s = election.lease if election.is_on else _LOST_S
        return master if trio.current_time() - since >= lost_s else None

    async def run(self) -> None:
        """Copy until cancelled; after a failure, try again."""
        logged = ""
        while True:
            tenure = self._tenures.current
            self.is_connected = False
            if tenure.master is None:
                self.state = "no master is known"
                await self._tenures.changed(tenure)
                continue
            pause_s, reason = _RETRY_S, ""
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._until_changed, nursery.cancel_scope)
                try:
                    await self._follow(tenure.master)
                except* MasterNotProven as group:
                    pause_s, reason = _REFUSED_RETRY_S, _reason(group)
                except* _BROKEN as group:
                    reason = _reason(group) or "the connection broke"
                except* ReputError as group:
                    pause_s, reason = _REFUSED_RETRY_S, _reason(group)
                was_connected, self.is_connected = self.is_connected, False
                if pause_s == _REFUSED_RETRY_S:
                    self._unreached = None
                elif was_connected or self._unreached is None or self._unreached[0] != tenure.master:
                    self._unreached = tenure.master, trio.current_time()
                self.state = f"master {tenure.master.address}: {reason}"
                if reason != logged or was_connected:
                    logged = reason
                    log.warning(
                        "replication_stopped",
                        master=tenure.master.address,
                        detail=reason,
                        hint="the slave tries again; it serves what it has",
                    )
                await trio.sleep(pause_s)
                nursery.cancel_scope.cancel()

    async def _until_changed(self, scope: trio.CancelScope) -> None:
        tenure = self._tenures.current
        while self._tenures.current.master == tenure.master:
            await self._tenures.changed(self._tenures.current)
        scope.cancel()

    # -- before the connection -------------------------------------------------------------------------------

    async def _follow(self, master: Master) -> None:
        """Compare histories and copy the log until the connection ends."""
        self.state = f"asks master {master.address} for its history"
        remote = MasterClient(master.address, self._config)
        try:
            last = await self._last_record()
            self._admission = None
            state = await self._ask(remote, last, proves_user=self._credentials is not None)
            if state is not None:
                await self._decide(state, last, remote)
            else:
                await self._check_last_record(last, remote)
            await self._begin_empty(state)
            await self._adopt_epochs(state)
            address = self._ha_address(master, state)
            async with await self._dial(address) as stream:
                await self._copy(stream, state, address, remote)
        finally:
            remote.close()

    async def _dial(self, address: str) -> trio.abc.Stream:
        """Connect within a short time: a machine that has lost power refuses nothing."""
        with trio.move_on_after(_ASK_TIMEOUT_S):
            return await dial(address, self._config.tls)
        raise RemoteUnreachable(address, f"has not accepted a connection within {_ASK_TIMEOUT_S:g} s")

    async def _ask(
        self, remote: MasterClient, record_offset: int = -1, *, proves_user: bool = False
    ) -> ReplicaState | None:
        """Return the master's description of its log, and of one record; None from a RocketMQ broker.

        Args:
            proves_user: have the master say what to prove this slave's user with.
        """
        is_fit = self._store.unfit_reason is None
        members = self._members
        header = QueryReplicaStateHeader(
            record_offset,
            self._member,
            is_fit,
            proves_user=proves_user or None,
            slave_id=members.own_id or None,
            address=members.own_address or None,
            copies_tables=True,
        )
        ext = header.to_ext(HeaderType.JSON)
        answer = await remote.call(RequestCode.QUERY_REPLICA_STATE, ext, timeout_s=_ASK_TIMEOUT_S)
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return None
        if answer.code != ResponseCode.SUCCESS:
            raise MasterRefused(f"it responded with code {answer.code}: {answer.remark}")
        if proves_user:
            self._admission = ReplicaAdmission.from_ext(answer.ext).admission
        state = ReplicaState.from_json(answer.body)
        members.learned(state.members)
        return state

    async def _last_record(self) -> int:
        """Return where the last record of this log starts, -1 if there is none."""
        store = self._store
        if store.last_record_offset >= 0:
            return store.last_record_offset
        return await trio.to_thread.run_sync(store.last_record_before, store.max_physical_offset)

    async def _decide(self, state: ReplicaState, last: int, remote: MasterClient) -> None:
        """Return if the log can be continued; have the store reopened if it must be changed before."""
        store = self._store
        if not state.is_master:
            raise RemoteUnreachable(remote.address, "it is not a master now")
        if state.ha_port is None:
            raise MasterRefused("it does not serve its log; set its ha_port")
        epochs = self._epochs.entries
        confirmed = self._tenures.confirmed(epochs, store.max_physical_offset)
        own = OwnLog.of(self._config, store, epochs, confirmed)
        decision = decide(own, state)
        self._master_log.note_end(state.max_offset)
        if isinstance(decision, Refuse):
            raise MasterRefused(decision.reason)
        if isinstance(decision, SetAside):
            await self._reopen(None, decision.reason)
        if isinstance(decision, TruncateTo):
            if decision.offset > own.min_offset:
                offset = await trio.to_thread.run_sync(store.last_record_before, decision.offset)
                common = await self._ask(remote, offset) if offset >= 0 else None
                self._compare(offset, None if common is None else common.record_crc)
            await self._reopen(decision.offset, f"the master does not have what follows {decision.offset}")
        if not own.is_empty:
            self._compare(last, state.record_crc)

    async def _reopen(self, truncate_to: int | None, reason: str) -> NoReturn:
        await self._on_reopen(truncate_to, reason)
        await trio.sleep_forever()

    def _compare(self, offset: int, crc: int | None) -> None:
        """Check that the record at an offset of this log is that of the master, by its checksum there."""
        record = self._store.record_at(offset) if offset >= 0 else None
        if record is None or crc32(record) != crc:
            raise MasterRefused(_OTHER_RECORD.format(offset))

    async def _check_last_record(self, offset: int, remote: MasterClient) -> None:
        """Check that a RocketMQ broker has the last record of this log at the same place."""
        record = self._store.record_at(offset) if offset >= 0 else None
        if record is None:
            return
        ext = ViewMessageHeader(offset).to_ext(HeaderType.JSON)
        answer = await remote.call(RequestCode.VIEW_MESSAGE_BY_ID, ext, timeout_s=_ASK_TIMEOUT_S)
        if answer.code != ResponseCode.SUCCESS or answer.body != record:
            raise MasterRefused(_OTHER_RECORD.format(offset))

    async def _begin_empty(self, state: ReplicaState | None) -> None:
        """Let an empty log begin where the log of a Reput master does."""
        if state is not None and state.min_offset and not self._store.max_physical_offset:
            await self._begin_at(state.min_offset)

    async def _begin_at(self, offset: int) -> None:
        """Let the empty log begin at an offset; if it has a file already, have it moved aside."""
        try:
            await trio.to_thread.run_sync(self._store.begin_replica_at, offset)
        except ValueError as error:
            await self._reopen(None, str(error))
        self._progress.read_store()

    async def _adopt_epochs(self, state: ReplicaState | None) -> None:
        self._master_epochs = [] if state is None else [Epoch(*entry) for entry in state.epochs]
        await self._adopt_until(self._store.max_physical_offset)

    async def _adopt_until(self, end: int) -> None:
        await trio.to_thread.run_sync(self._epochs.adopt, self._master_epochs, end)
        later = [epoch.start_offset for epoch in self._master_epochs if epoch.start_offset > end]
        self._next_epoch_at = min(later, default=inf)

    def _ha_address(self, master: Master, state: ReplicaState | None) -> str:
        if self._config.ha.master_ha_address or state is None:
            return self._config.ha.master_ha_address or master.ha_address
        return f"{master.address.rpartition(':')[0]}:{state.ha_port}"

    # -- the connection --------------------------------------------------------------------------------------

    async def _copy(
        self, stream: trio.abc.Stream, state: ReplicaState | None, address: str, remote: MasterClient
    ) -> None:
        end = self._store.max_physical_offset
        await self._durable.reached(end)  # the first report acknowledges all of it
        await self._prove(stream, state, address, remote)
        hello = b"" if state is None else encode_hello(Hello(self._member, state.epoch))
        await stream.send_all(hello + REPORT.pack(self._durable.offset))
        self.is_connected = True
        self.state = f"copies the log of {address}"
        log.info("replication_begins", master=address, offset=end)
        is_open = state is None and end == 0
        reader = TransferReader(self._config.store.commit_log_file_size, None if is_open else end)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._report, stream)
            if state is not None:
                nursery.start_soon(self._follow_state, remote, state)
            received = ReceivedLog(self._store.options, end)
            while True:
                with trio.move_on_after(self._config.ha.housekeeping_interval) as silence:
                    data = await stream.receive_some(_RECEIVE_BYTES)
                if silence.cancelled_caught:
                    raise HAProtocolError(
                        f"it has sent nothing for {self._config.ha.housekeeping_interval:g} s "
                        "(ha.housekeeping_interval)"
                    )
                if not data:
                    raise trio.BrokenResourceError("it has closed the connection")
                self.received_at = trio.current_time()
                for offset, piece in reader.feed(bytes(data)):
                    if is_open:
                        is_open = False
                        if offset:
                            await self._begin_at(offset)
                        received = ReceivedLog(self._store.options, offset)
                    received.add(piece)
                await self._append(received)

    async def _prove(
        self, stream: trio.abc.Stream, state: ReplicaState | None, address: str, remote: MasterClient
    ) -> None:
        """Prove this slave's user, and have the master prove itself, if the master has access control.

        Raises:
            MasterRefused: what it has sent cannot be used.
            HAProtocolError: it has not proved itself.
        """
        credentials = self._credentials
        if self._admission is None or credentials is None or state is None:
            return
        try:
            if remote.is_proven:
                group = Group(self._config.cluster, self._config.broker_name, state.epoch)
                await prove(stream, self._admission, credentials.user, credentials.secret, group, address)
            else:
                await stream.send_all(old_proof_frame(self._admission, credentials.secret))
        except ValueError as error:
            raise MasterRefused(f"it sent something that cannot be proved: {error}") from None

    async def _append(self, received: ReceivedLog) -> None:
        """Append what is complete.

        An epoch is adopted before its first byte. If the slave is killed in between, or loses an unsynced end, no byte
        of an epoch that it has reported lacks its epoch.
        """
        store = self._store
        while (item := received.take()) is not None:
            with item.data as data:
                size = len(data)
                if item.offset + size > self._next_epoch_at:
                    await self._adopt_until(item.offset + size)
                append = partial(store.append_replicated, item.offset, data, stored_ms=item.stored_ms)
                await self._lock.call(store, max(0, size - BLANK_BYTES), append)
            received.drop(size)
            if item.last_record_offset >= 0:
                store.last_record_offset = item.last_record_offset
            self._on_appended()

    async def _follow_state(self, remote: MasterClient, state: ReplicaState) -> None:
        """Let consumers of this slave read what every member of the in-sync set has, and learn who the others are.

        An earlier answer stays true under any later master, so that a failure to ask only delays consumers.
        """
        while True:
            confirmed = state.confirm_offset
            if confirmed is not None:
                self.note_confirmed(state.epoch, confirmed)
            await trio.sleep(_MEMBERS_INTERVAL_S if confirmed is None else _CONFIRM_INTERVAL_S)
            with suppress(RemoteUnreachable):
                state = await self._ask(remote) or state

    def note_confirmed(self, epoch: int, offset: int) -> None:
        """Note how far the log of the master of an epoch is confirmed, whose history is that of this log."""
        self._tenures.note_confirmed(epoch, offset, self._epochs.entries, self._store.max_physical_offset)
        self._progress.confirm(offset)

    async def _report(self, stream: trio.abc.Stream) -> None:
        """Report how far this log is durable, when that grows and as a heartbeat."""
        reported = self._durable.offset
        while True:
            with trio.move_on_after(self._config.ha.send_heartbeat_interval):
                await self._durable.reached(reported + 1)
            reported = self._durable.offset
            await stream.send_all(REPORT.pack(reported))


def _reason(group: BaseExceptionGroup[BaseException]) -> str:
    return "; ".join(str(error) for error in leaves(group) if str(error))
