"""The admin client, with its methods about brokers; modules of this package have the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from reput_client.admin.message_history import MessageHistoryAdmin
from reput_client.admin.schedules import ScheduleAdmin
from reput_client.admin.users import UserAdmin
from reput_client.preview import Preview
from reput_client.transport.address import parse_address
from reput_client.transport.options import ClientOptions, takes
from reput_client.transport.session import Session
from reput_protocol.codes import RequestCode
from reput_protocol.commands.operation import (
    INTAKE_WORDS,
    BrokerDescription,
    ClientDescription,
    ClientDescriptions,
    ConfigChanged,
    ConfigChanges,
    ConfigOption,
    ConfigOptions,
    DisconnectClientHeader,
    FlushedBody,
    Intake,
    IntakeName,
    SetConfigBody,
    SetIntakeHeader,
)
from reput_protocol.commands.replica import (
    HARuntimeInfo,
    PromoteBrokerHeader,
    Promotion,
    QueryReplicaStateHeader,
    ReplicaState,
)
from reput_protocol.commands.statistics import BrokerHistory, ReadHistoryHeader
from reput_protocol.commands.topic import MASTER_ID, ClusterInfo, KVTable
from reput_protocol.errors import ErrorCode, NotFound, ReputError, RequestNotSupported
from reput_protocol.wire.header import HeaderType

_MSGPACK = HeaderType.MSGPACK


@dataclass(frozen=True, slots=True)
class ClusterMember:
    """One member of a broker name, a master or a slave, with its state. What it did not report is None."""

    cluster: str
    broker_name: str
    broker_id: int
    """The announced id: 0 is the master."""
    address: str
    number: int | None = None
    """Its number in a group that elects its master: `broker_id` of its configuration, which `promote_broker` takes."""
    takes_messages: bool | None = None
    """Whether it says that it is a master."""
    epoch: int | None = None
    """Of a master with slaves: its epoch."""
    end_offset: int | None = None
    """The end of its log."""
    lag_bytes: int | None = None
    """Of a slave: how much of its master's log it lacks."""
    slaves: int | None = None
    """Of a master: slaves that are connected."""
    in_sync: int | None = None
    """Of a master: copies that are in sync, its own included."""
    is_copying: bool | None = None
    """Of a slave: whether it receives its master's log."""
    error: str | None = None
    """Why it did not report."""

    @property
    def is_master(self) -> bool:
        """Whether it is announced as the master."""
        return self.broker_id == MASTER_ID


class Admin(MessageHistoryAdmin, ScheduleAdmin, UserAdmin):
    """Manages the brokers of a cluster; an async context manager for trio and asyncio.

    Changes are made at the master of every broker, and results of all of them are combined. Methods raise a subclass of
    `BrokerError` if the broker refuses, and `RequestTimeout` or `ConnectFailed` if no answer comes in
    time; if some of several brokers fail, `BrokersFailed` names them.

    Args:
        address: `host:port` of a broker or a name server; of several, the first that answers is used. A broker that is
            not registered with others is managed alone.
        timeout_s: seconds a request may take, including connecting.
    """

    @takes(ClientOptions)
    def __init__(self, options: ClientOptions) -> None:
        super().__init__(options)

    # -- the broker --------------------------------------------------------------------------------------------

    async def broker_status(self, broker_name: str | None = None) -> dict[str, str]:
        """Return a broker's statistics by name, as text (RocketMQ: BrokerRuntimeInfo).

        They are those of the broker at the client's address, or of the named broker's master.
        """
        call = await self._ask_one(
            broker_name, RequestCode.GET_BROKER_RUNTIME_INFO, {}, "status of the broker"
        )
        return dict(KVTable.from_json(call.body).table)

    async def describe_broker(self, broker_name: str | None = None) -> dict[str, Any]:
        """Return a broker's state: what its page /status shows, and its `checks`.

        It is the broker at the client's address, or the named broker's master.

        Sizes (`..._bytes`) are in bytes, ages (`..._s`) in seconds, times in seconds since 1970.
        """
        call = await self._ask_one(broker_name, RequestCode.DESCRIBE_BROKER, {}, "state of the broker")
        return BrokerDescription.from_json(call.body).status

    async def list_clients(self, broker_name: str | None = None) -> list[ClientDescription]:
        """Return the connections of a broker, this client's included; `broker_name` as for `describe_broker`."""
        call = await self._ask_one(broker_name, RequestCode.LIST_CLIENTS, {}, "clients of the broker")
        return ClientDescriptions.from_json(call.body).clients

    async def preview_disconnect_client(self, address: str, *, broker_name: str | None = None) -> Preview:
        """Return what `disconnect_client` would do. Raises `NotFound`: no client is connected from there."""
        found = [client for client in await self.list_clients(broker_name) if client.address == address]
        if not found:
            raise NotFound(
                ErrorCode.NOT_FOUND, f"no client is connected from {address!r}; nothing was disconnected"
            )
        client = found[0]
        who = client.client_id or "no client id yet"
        groups = f", of {', '.join(client.groups)}" if client.groups else ""
        return Preview(
            f"the connection of the {client.role} at {address} ({who}{groups}) is closed",
            (
                "requests without a response yet have an unknown outcome for it",
                "the client reconnects; to keep it out, remove its rights or stop its program",
            ),
        )

    async def disconnect_client(self, address: str, *, broker_name: str | None = None) -> None:
        """Close a client's connection; `address` as `list_clients` has it, `broker_name` as for `describe_broker`.

        Raises:
            NotFound: no client is connected from there.
        """
        ext = DisconnectClientHeader(address).to_ext(_MSGPACK)
        await self._ask_one(broker_name, RequestCode.DISCONNECT_CLIENT, ext, f"connection of {address}")

    async def broker_config(self, broker_name: str | None = None) -> list[ConfigOption]:
        """Return the options of a broker, with what set each; `broker_name` as for `describe_broker`."""
        call = await self._ask_one(broker_name, RequestCode.GET_CONFIG, {}, "configuration of the broker")
        return ConfigOptions.from_json(call.body).options

    async def broker_history(
        self,
        begin_s: int,
        end_s: int = 0,
        *,
        rows_max: int = 720,
        has_names: bool = True,
        broker_name: str | None = None,
    ) -> BrokerHistory:
        """Return a broker's figures in the past days; `broker_name` as for `describe_broker`.

        A broker without a console keeps none.

        Args:
            begin_s: where they begin, in seconds since 1970; up to 0, in seconds before now.
            end_s: where they end, likewise.
            rows_max: upper bound of the rows, of 1 to 2016.
            has_names: whether those of groups and topics are wanted; the steps are then at least 10 s.
        """
        ext = ReadHistoryHeader(begin_s, end_s, rows_max, has_names).to_ext(_MSGPACK)
        call = await self._ask_one(broker_name, RequestCode.READ_HISTORY, ext, "history of the broker")
        return BrokerHistory.from_json(call.body)

    async def set_broker_config(
        self, values: Mapping[str, str], *, broker_name: str | None = None
    ) -> list[ConfigChanged]:
        """Set options that can change while the broker runs, until its next reload or restart.

        Args:
            values: by key, as text without quotes, such as `async` or `500ms`.
            broker_name: as for `describe_broker`.

        Returns:
            The options that changed.

        Raises:
            BrokerError: a key is unknown or needs a restart, or a value is not valid. Nothing was changed.
        """
        body = SetConfigBody(dict(values)).to_json()
        call = await self._ask_one(
            broker_name, RequestCode.SET_CONFIG, {}, "configuration of the broker", body
        )
        return ConfigChanges.from_json(call.body).changes

    async def reload_broker_config(self, broker_name: str | None = None) -> list[ConfigChanged]:
        """Have a broker read its file and its environment again, and return every difference.

        `broker_name` as for `describe_broker`.

        Raises:
            BrokerError: there are mistakes in them. Nothing was changed.
        """
        call = await self._ask_one(broker_name, RequestCode.RELOAD_CONFIG, {}, "configuration of the broker")
        return ConfigChanges.from_json(call.body).changes

    async def preview_intake(self, intake: Intake | IntakeName, *, broker_name: str | None = None) -> Preview:
        """Return what `set_intake` would do."""
        wanted = Intake(intake)
        status = await self.describe_broker(broker_name)
        name = status.get("broker_name", broker_name or "the broker")
        check = status.get("checks", {}).get("intake", {"ok": True, "detail": ""})
        before = Intake.OPEN if check["ok"] else Intake(check["detail"].partition(",")[0])
        if before is wanted:
            return Preview(f"broker {name} {INTAKE_WORDS[wanted]} already", is_change=False)
        notes = ["a restart ends it"] if wanted is not Intake.OPEN else []
        if wanted is not Intake.OPEN:
            notes.insert(
                0, "producers get an error; consumers, delayed messages, retries and transactions continue"
            )
        return Preview(
            f"broker {name} {INTAKE_WORDS[wanted]} from now on; before, it {INTAKE_WORDS[before]}", notes
        )

    async def set_intake(self, intake: Intake | IntakeName, *, broker_name: str | None = None) -> Intake:
        """Have the broker take or refuse messages of producers, and return what it did before.

        Returns when the messages that were taken before are on disk. Consumers continue in every state; delayed
        messages, retries and messages of open transactions are still delivered.

        Args:
            intake: `open`; `readonly`: refuses messages; `draining`: also reports that it is not ready, so that load
                balancers send no more clients.
            broker_name: as for `describe_broker`.
        """
        ext = SetIntakeHeader(Intake(intake)).to_ext(_MSGPACK)
        call = await self._ask_one(broker_name, RequestCode.SET_INTAKE, ext, "intake of the broker")
        return FlushedBody.from_json(call.body).was

    async def flush_log(self, *, broker_name: str | None = None) -> int:
        """Have the broker write its log to disk, and return up to which offset it is there."""
        call = await self._ask_one(broker_name, RequestCode.FLUSH_LOG, {}, "sync of the log")
        return FlushedBody.from_json(call.body).flushed_offset

    async def cluster_info(self) -> ClusterInfo:
        """Return the cluster's brokers and their addresses."""
        call = await self._ask(RequestCode.GET_BROKER_CLUSTER_INFO, {}, "brokers of the cluster")
        return ClusterInfo.from_json(call.body)

    async def cluster_members(self) -> list[ClusterMember]:
        """Return the members of every broker with their state; one that does not report has an `error`."""
        return await _cluster_members(self._session)

    async def preview_promote(self, broker_id: int, *, force: bool = False) -> Preview:
        """Return what `promote_broker` would do; that the broker has no election is an obstacle."""
        status = await self.describe_broker()
        name, election = status.get("broker_name", ""), status.get("election")
        if not election:
            text = f"broker {name} has no election: its group has no other member that could be the master"
            return Preview(
                text, is_change=False, obstacle=text, remedy="configure an election: docs/cluster.md"
            )
        notes = ["the master rejects new messages until the replica has all of the log; no message is lost"]
        if force:
            notes = [f"messages that broker {broker_id} does not have are lost"]
        in_sync = [int(number) for number in election.get("in_sync", [])]
        is_behind = broker_id not in in_sync
        return Preview(
            f"member {broker_id} becomes the master of {name}; the master is {election.get('master') or 'unknown'}",
            notes,
            obstacle=f"member {broker_id} is not in sync; in sync are {', '.join(map(str, in_sync)) or 'none'}"
            if is_behind and not force
            else None,
            remedy="wait until it has the log, or --force, which loses what it does not have"
            if is_behind
            else None,
            can_force=True,
        )

    async def promote_broker(self, broker_id: int, *, force: bool = False) -> Promotion:
        """Make another member the master of the broker's group, which an engine elects otherwise.

        Args:
            broker_id: the member's own number, as configured.
            force: even a member that is not in sync. What it does not have is lost.

        Raises:
            NotMaster: this broker is not the master; `ext` has the master's address if it is known.
            BrokerError: it was refused, and nothing has changed. The remark says what would be lost by force.
        """
        header = PromoteBrokerHeader(broker_id, force)
        call = await self._ask(
            RequestCode.PROMOTE_BROKER, header.to_ext(_MSGPACK), f"promotion of broker {broker_id}"
        )
        return Promotion.from_json(call.body)


async def _cluster_members(session: Session) -> list[ClusterMember]:
    """Return the members of all brokers that the name service lists, sorted; raises if it does not answer."""
    call = await session.ask_ok(RequestCode.GET_BROKER_CLUSTER_INFO, {}, what="brokers of the cluster")
    info = ClusterInfo.from_json(call.body)
    members: list[ClusterMember] = []
    for name, data in sorted(info.broker_addr_table.items()):
        group = [
            await _reported(session, ClusterMember(data.cluster, name, number, address))
            for number, address in sorted(data.broker_addrs.items())
        ]
        master_end = group[0].end_offset if group and group[0].is_master else None
        members += [_with_lag(member, master_end) for member in group]
    return sorted(members, key=lambda member: (member.cluster, member.broker_name, member.broker_id))


async def _reported(session: Session, member: ClusterMember) -> ClusterMember:
    """Return the member with what it reports."""
    try:
        address = parse_address(member.address)
        what = f"state of {member.broker_name} at {member.address}"
        call = await session.ask_ok(RequestCode.GET_BROKER_HA_STATUS, {}, what=what, address=address)
        copies = HARuntimeInfo.from_json(call.body)
        asked = QueryReplicaStateHeader().to_ext(_MSGPACK)
        try:
            call = await session.ask_ok(RequestCode.QUERY_REPLICA_STATE, asked, what=what, address=address)
            state = ReplicaState.from_json(call.body)
            number, epoch, end = state.member, state.epoch or None, state.max_offset
        except RequestNotSupported:  # by RocketMQ's brokers
            own_end = 0 if copies.client is None else copies.client.max_offset
            number, epoch = None, None
            end = copies.master_commit_log_max_offset if copies.master else own_end
    except (ReputError, ValueError) as error:
        session.check_open()
        return replace(member, error=str(error))
    member = replace(member, number=number, takes_messages=copies.master)
    if copies.master:
        return replace(
            member,
            epoch=epoch,
            end_offset=end,
            slaves=len(copies.connections),
            in_sync=1 + copies.in_sync_slave_nums,
        )
    is_copying = copies.client is not None and copies.client.activated
    return replace(member, end_offset=end, is_copying=is_copying)


def _with_lag(member: ClusterMember, master_end: int | None) -> ClusterMember:
    if member.is_master or member.end_offset is None or master_end is None:
        return member
    return replace(member, lag_bytes=max(0, master_end - member.end_offset))
