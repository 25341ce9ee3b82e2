"""QUERY_REPLICA_STATE: what a slave compares its log with before it copies the master's, and a member its own before it
campaigns; the state of replication (907), and an offset in a slave's checkpoint (908) (RocketMQ: AdminBrokerProcessor).
"""

from __future__ import annotations

from collections.abc import Callable
from zlib import crc32

from reput_broker.ha.admission import SlaveAdmission
from reput_broker.ha.epochs import EpochFile
from reput_broker.namesrv.members import GroupMembers
from reput_broker.remoting.request import Processor, Request, Response, serves
from reput_broker.tenure import Core
from reput_protocol.codes import RequestCode
from reput_protocol.commands.replica import (
    HARuntimeInfo,
    QueryReplicaStateHeader,
    ReplicaAdmission,
    ReplicaState,
    ResetMasterFlushOffsetHeader,
)


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
        self._config = core.config
        self._store = core.store
        self._epochs = epochs
        self._members = members
        self._epoch = epoch
        self._ha_port = ha_port
        self._tenures = core.tenures
        self._admission = admission
        self._on_member = on_member

    @serves(RequestCode.QUERY_REPLICA_STATE)
    def query(self, request: Request) -> Response:
        """Answer with the history of the log, and the checksum of the record at the named offset."""
        header = QueryReplicaStateHeader.from_ext(request.ext)
        self._on_member(header)
        host = request.client.peer.rpartition(":")[0]
        self._members.asked(header.slave_id, header.address, host)
        store = self._store
        record = None if header.record_offset < 0 else store.record_at(header.record_offset)
        epochs = self._epochs.entries
        state = ReplicaState(
            cluster=self._config.cluster,
            broker_name=self._config.broker_name,
            is_master=not store.options.is_replica,
            epoch=self._epoch,
            min_offset=store.min_physical_offset,
            max_offset=store.max_physical_offset,
            file_size=store.options.commit_log_file_size,
            epochs=[(epoch.number, epoch.start_offset) for epoch in epochs],
            confirm_offset=store.confirm_offset,
            ha_port=self._ha_port,
            member=self._config.broker_id if self._config.election.is_on else None,
            seen_record=self._tenures.seen_record,
            known_confirmed=self._tenures.known_confirmed(epochs, store.max_physical_offset),
            record_crc=None if record is None else crc32(record),
            members=self._members.all(),
        )
        number = None
        if header.proves_user and self._admission is not None and request.principal is not None:
            number = self._admission.number_for(request.principal.name, host)
        return Response(0, ReplicaAdmission(number).to_ext(request.header_type), state.to_json())


class HAStatusProcessor(Processor):
    """Answers with the state.

    Args:
        state: returns it as of now.
        set_master_flushed: keeps the master's flushed offset in the checkpoint; None at a master.
    """

    def __init__(
        self,
        state: Callable[[], HARuntimeInfo],
        set_master_flushed: Callable[[int], None] | None = None,
    ) -> None:
        self._state = state
        self._set_master_flushed = set_master_flushed

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
