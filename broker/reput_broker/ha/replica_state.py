"""QUERY_REPLICA_STATE: what a slave compares its log with before it copies the master's, and a member its own before it
campaigns; the state of replication (907), and an offset in a slave's checkpoint (908); the tables that a slave takes
over from its master: 21, 43, 45, 60, 61, 201, 402, 700060, 700062, 700063 (RocketMQ: AdminBrokerProcessor).

An answer with a table says which end of the log it belongs to: the slave keeps it until it has the log up to there, so
that its tables never name what it does not have. A table that is larger than a frame is sent in parts, from the byte on
that a slave of Reput asks for. The table that it has a part of is kept for a short time, so that all parts are of one
version; if it is not kept any more, the slave gets the beginning of the table as it is now.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple
from zlib import crc32

import trio

from reput_broker.delay.state import DelayState
from reput_broker.ha.admission import SlaveAdmission
from reput_broker.ha.epochs import EpochFile
from reput_broker.namesrv.members import GroupMembers
from reput_broker.remoting.request import Handled, Handler, Processor, Request, Response, serves, write_in_turns
from reput_broker.tables.config_file import DataVersion
from reput_broker.tenure.core import Core
from reput_protocol.codes import RequestCode
from reput_protocol.commands.base import encode_json
from reput_protocol.commands.replica import (
    ANNOUNCED_TABLES,
    ConsumerOffsetTable,
    HARuntimeInfo,
    QueryReplicaStateHeader,
    ReplicaAdmission,
    ReplicaState,
    ResetMasterFlushOffsetHeader,
    SyncTableHeader,
    SyncTableResult,
)
from reput_protocol.names import POP_PASSED_GROUP, revive_topic
from reput_protocol.wire.header import Value

PART_BYTES: Final = 4 << 20
_KEPT_S: Final = 30.0
_POPS_SEPARATOR: Final = "/"
"""Separates the version of the offsets from the log offset of check points."""


class ReplicaStateProcessor(Processor):
    """Describes the log of this broker to slaves and members. A slave answers too, that it is not the master.

    Args:
        members: of the replica group; receives the slaves that ask.
        epoch: of this tenure as master; 0 for a slave, and for a master that counts none.
        ha_port: where the log is served; None if it is not.
        admission: gives a slave what it proves its user with on that port; None: it need not.
        on_member: called with what a slave says of itself when it asks.
    """

    def __init__(
        self,
        core: Core,
        epochs: EpochFile,
        members: GroupMembers,
        *,
        epoch: int,
        ha_port: int | None,
        admission: SlaveAdmission | None = None,
        on_member: Callable[[QueryReplicaStateHeader], None] = lambda _header: None,
    ) -> None:
        self._core = core
        self._epochs = epochs
        self._members = members
        self._epoch = epoch
        self._ha_port = ha_port
        self._admission = admission
        self._on_member = on_member

    @serves(RequestCode.QUERY_REPLICA_STATE)
    def query(self, request: Request) -> Response:
        """Answer with the history of the log, and the checksum of the record at the named offset."""
        header = QueryReplicaStateHeader.from_ext(request.ext)
        self._on_member(header)
        host = request.client.peer.rpartition(":")[0]
        self._members.asked(header.slave_id, header.address, host)
        store = self._core.store
        record = None if header.record_offset < 0 else store.record_at(header.record_offset)
        epochs = self._epochs.entries
        state = ReplicaState(
            cluster=self._core.config.cluster,
            broker_name=self._core.config.broker_name,
            is_master=not store.options.is_replica,
            epoch=self._epoch,
            min_offset=store.min_physical_offset,
            max_offset=store.max_physical_offset,
            file_size=store.options.commit_log_file_size,
            epochs=[(epoch.number, epoch.start_offset) for epoch in epochs],
            confirm_offset=store.confirm_offset,
            ha_port=self._ha_port,
            member=self._core.config.broker_id if self._core.config.election.is_on else None,
            seen_record=self._core.tenures.seen_record,
            known_confirmed=self._core.tenures.known_confirmed(epochs, store.max_physical_offset),
            record_crc=None if record is None else crc32(record),
            members=self._members.all(),
        )
        number = None
        if header.proves_user and self._admission is not None and request.principal is not None:
            number = self._admission.number_for(request.principal.name, host)
        return Response(0, ReplicaAdmission(number).to_ext(request.header_type), state.to_json())


@dataclass(eq=False, repr=False)
class HAStatusProcessor(Processor):
    """Answers with the state.

    Args:
        state: returns it as of now.
        set_master_flushed: keeps the master's flushed offset in the checkpoint; None at a master.
    """

    _state: Callable[[], HARuntimeInfo]
    _set_master_flushed: Callable[[int], None] | None = None

    @serves(RequestCode.GET_BROKER_HA_STATUS)
    def status(self, _request: Request) -> Response:
        """Answer with the slaves of a master, or with how far a slave is."""
        return Response(0, body=self._state().to_json())

    @serves(RequestCode.RESET_MASTER_FLUSH_OFFSET)
    def reset_master_flush_offset(self, request: Request) -> Response:
        """Set `masterFlushedOffset` of a slave's checkpoint; a master does nothing."""
        offset = ResetMasterFlushOffsetHeader.from_ext(request.ext).master_flush_offset
        if self._set_master_flushed is not None and offset is not None:
            self._set_master_flushed(offset)
        return Response()


class _Kept(NamedTuple):
    """A table that slaves are getting in parts."""

    version: str
    ext: dict[str, Value]
    body: bytes
    until_s: float

    def part(self, offset: int) -> Response:
        """Return the part that begins at an offset."""
        return Response(0, {**self.ext, "tableSize": len(self.body)}, self.body[offset : offset + PART_BYTES])


@dataclass(eq=False, repr=False)
class TableParts:
    """Answers requests for tables in parts, to slaves that can put them together."""

    _clock: Callable[[], float] = trio.current_time
    _kept: dict[int, _Kept] = field(default_factory=dict, init=False)

    def of(self, handler: Handler) -> Handler:
        """Return a handler that answers as `handler` does, in parts if the table is large and the slave takes those."""

        async def handle(request: Request) -> Response:
            asked, code, now_s = SyncTableHeader.from_ext(request.ext), request.header.code, self._clock()
            self._kept = {key: kept for key, kept in self._kept.items() if kept.until_s > now_s}
            kept = self._kept.get(code)
            if asked.part_of and kept is not None and kept.version == asked.part_of:
                return kept.part(max(0, asked.part_offset or 0))
            answer = handler(request)
            if isinstance(answer, Awaitable):
                answer = await answer
            assert isinstance(answer, Response), "a table"
            version = answer.ext.get("tableVersion")
            if asked.part_offset is None or len(answer.body) <= PART_BYTES or not isinstance(version, str):
                return answer
            kept = self._kept[code] = _Kept(version, answer.ext, answer.body, now_s + _KEPT_S)
            return kept.part(0)

        return handle


class TableSyncProcessor:
    """Answers with tables, or only with their version if the slave has it.

    Args:
        batches_version: returns the version of the table of sinks' batches.
        handlers: those that answer 21, 45, 201 and 700060 with the table.
    """

    def __init__(
        self,
        core: Core,
        delays: DelayState,
        batches_version: Callable[[], DataVersion],
        handlers: Mapping[int, Handler],
    ) -> None:
        self._core = core
        self._delays = delays
        self._offsets_version, self._until = "", 0
        tables, online = core.tables, core.groups.membership.online
        self._run = run = secrets.token_hex(4)
        self._parts = TableParts()
        served: dict[int, Callable[[], str]] = {
            RequestCode.GET_ALL_TOPIC_CONFIG: lambda: _text(tables.topics.version),
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: lambda: _text(tables.groups.version),
            RequestCode.GET_SINK_BATCHES: lambda: _text(batches_version()),
            RequestCode.GET_ALL_DELAY_OFFSET: lambda: f"{crc32(delays.offsets_version().encode()):x}",
        }
        self._tables: dict[int, tuple[Callable[[], str], Handler]] = {
            **{code: (version, handlers[code]) for code, version in served.items()},
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: (
                lambda: f"{run}-{tables.request_modes.changes}",
                self.request_modes,
            ),
            RequestCode.GET_GROUP_MEMBERS: (lambda: f"{run}-{online.changes}", self.group_members),
            RequestCode.GET_ALL_SCHEDULES: (lambda: f"{run}-{tables.schedules.changes}", self.schedules),
            RequestCode.GET_TIMER_CHECK_POINT: (self._timer_version, self.timer_checkpoint),
        }
        """What returns the version of a table, and what answers with it; the offsets have an answer of their own."""
        versions = {code: version for code, (version, _) in self._tables.items()}
        versions[RequestCode.GET_ALL_CONSUMER_OFFSET] = lambda: tables.offsets.changes_version
        self._announced = [versions[code] for code in ANNOUNCED_TABLES]

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        whole: dict[int, Handler] = {code: partial(self._answer, *table) for code, table in self._tables.items()}
        whole[RequestCode.GET_ALL_CONSUMER_OFFSET] = self.consumer_offsets
        handlers = {code: self._parts.of(handler) for code, handler in whole.items()}
        return {**handlers, RequestCode.GET_TIMER_METRICS: self.timer_metrics}

    async def _answer(self, version: Callable[[], str], handler: Handler, request: Request) -> Handled:
        """Answer as `handler` does, with the version; without a body if the slave has that version."""
        known = SyncTableHeader.from_ext(request.ext).table_version
        log_end, found = self._core.store.wrote_offset, f"{self._run}.{version()}"
        ext = SyncTableResult(found, log_end).to_ext(request.header_type)
        if known == found:
            return Response(0, ext)
        answer = handler(request)
        if isinstance(answer, Awaitable):
            answer = await answer
        assert isinstance(answer, Response)
        answer.ext = {**answer.ext, **ext}
        return answer

    def versions(self) -> str:
        """Return a text for each of ANNOUNCED_TABLES, with dots between, that differs whenever the table does."""
        return ".".join([f"{crc32(version().encode()):x}" for version in self._announced])

    def group_members(self, _request: Request) -> Response:
        """Answer with the members of groups, for the list of a slave that becomes the master."""
        return Response(0, body=encode_json({"members": self._core.groups.membership.to_await()}))

    def _timer_version(self) -> str:
        is_used = self._delays.timers.is_used
        return f"{self._core.store.wrote_offset}.{self._delays.timers.read_ms}" if is_used else "unused"

    async def consumer_offsets(self, request: Request) -> Response:
        """Answer with the offsets of all groups, or with those that have changed since the slave's version.

        A slave of Reput also gets the log offset before which the check points of pops are part of these offsets.
        """
        known = SyncTableHeader.from_ext(request.ext).table_version
        known_offsets, _, _ = (known or "").partition(_POPS_SEPARATOR)
        changes = self._core.tables.offsets.changes_since(known_offsets)
        popped_until = self._popped_until(changes.version)
        version = f"{changes.version}{_POPS_SEPARATOR}{popped_until}"
        # Offsets name what consumers have read, which is dispatched.
        log_end = self._core.store.dispatched_offset
        ext = SyncTableResult(version, log_end, changes.is_partial)
        if version == known:
            return Response(0, ext.to_ext(request.header_type))
        table = {f"{topic}@{group}": offsets for (group, topic), offsets in changes.offsets.items()}
        if known is not None:
            table[f"{revive_topic(self._core.config.cluster)}@{POP_PASSED_GROUP}"] = {0: popped_until}
        body = ConsumerOffsetTable(table, self._core.tables.offsets.version.to_json())
        return Response(0, ext.to_ext(request.header_type), await write_in_turns(body))

    def _popped_until(self, version: str) -> int:
        """Return a log offset; the positions of pops whose check points are before it are part of the offsets.

        Only other offsets bring another one, so that slaves are not sent a change with every message.
        """
        if version != self._offsets_version:
            self._offsets_version, self._until = version, self._core.store.dispatched_offset
        return self._until

    def request_modes(self, _request: Request) -> Response:
        """Answer with how groups consume topics, if that was set."""
        return Response(0, body=encode_json(self._core.tables.request_modes.members()))

    def schedules(self, _request: Request) -> Response:
        """Answer with the schedules, as they are in their file."""
        return Response(0, body=encode_json(self._core.tables.schedules.members()))

    def timer_checkpoint(self, request: Request) -> Response:
        """Answer with the first 56 bytes of `config/timercheck`, as of now, and what Reput's slaves need in addition.

        They get no body while that is not known.
        """
        body = self._delays.timer_checkpoint()
        if SyncTableHeader.from_ext(request.ext).table_version is not None:
            finished = self._delays.finished_timers()
            body = body + finished if finished else b""
        return Response(0, body=body)

    def timer_metrics(self, _request: Request) -> Response:
        """Answer with the number of delayed messages by topic."""
        now_ms = self._core.clock_ms()
        counts = {topic: {"count": count, "timeStamp": now_ms} for topic, count in self._delays.stats.waiting.items()}
        version = DataVersion().next(now_ms)  # what an Apache slave has differs from it
        return Response(0, body=encode_json({"dataVersion": version.to_json(), "timingCount": counts}))


def _text(version: DataVersion) -> str:
    return f"{version.state_version}-{version.counter}-{version.timestamp_ms}"
