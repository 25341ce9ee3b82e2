"""The admin client, with its methods about brokers and delayed messages; modules of this package have the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reput_client.admin.cluster_members import ClusterMember, cluster_members
from reput_client.admin.message_history import MessageHistoryAdmin
from reput_client.admin.schedules import ScheduleAdmin
from reput_client.admin.transactions import TransactionAdmin
from reput_client.admin.users import UserAdmin
from reput_client.preview import Preview
from reput_client.transport.options import ClientOptions, takes
from reput_protocol.codes import RequestCode
from reput_protocol.commands.delay import (
    CancelDelayedHeader,
    CancelledMessage,
    CancelResult,
    DelayedMessage,
    DelayedMessageList,
    ListDelayedHeader,
)
from reput_protocol.commands.election import PromoteBrokerHeader, Promotion
from reput_protocol.commands.history import BrokerHistory, ReadHistoryHeader
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
from reput_protocol.commands.topic import ClusterInfo, KVTable
from reput_protocol.errors import ErrorCode, NotFound
from reput_protocol.names import check_topic
from reput_protocol.printable import counted
from reput_protocol.wire.header import HeaderType

_MSGPACK = HeaderType.MSGPACK


class Admin(MessageHistoryAdmin, ScheduleAdmin, TransactionAdmin, UserAdmin):
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
        return await cluster_members(self._session)

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

    # -- delayed messages --------------------------------------------------------------------------------------

    async def list_delayed(
        self, *, topic: str | None = None, key: str | None = None, max_messages: int = 1000
    ) -> list[DelayedMessage]:
        """Return delayed messages that are not delivered yet, the earliest first.

        Args:
            topic: only those for this topic.
            key: only those with this unique id or key.
            max_messages: upper bound.
        """

        async def read(
            name: str, count: int, cursor: str | None
        ) -> tuple[Sequence[DelayedMessage], str | None]:
            page = await self.delayed_page(
                topic=topic, key=key, max_messages=count, cursor=cursor, broker_name=name
            )
            return page.messages, page.cursor

        return await self._from_masters(read, max_messages, lambda found: found.deliver_timestamp)

    async def delayed_page(
        self,
        *,
        topic: str | None = None,
        key: str | None = None,
        max_messages: int = 64,
        cursor: str | None = None,
        broker_name: str | None = None,
    ) -> DelayedMessageList:
        """Return a part of a broker's delayed messages: the earliest, or those from `cursor` on.

        There may be fewer than `max_messages`. It is the broker at the client's address, or the named broker's master.
        """
        topic = None if topic is None else check_topic(topic)
        ext = ListDelayedHeader(topic, key, max_messages, cursor or None).to_ext(_MSGPACK)
        what = "list of delayed messages"
        call = await self._ask_one(broker_name, RequestCode.LIST_DELAYED_MESSAGES, ext, what)
        return DelayedMessageList.from_json(call.body)

    async def preview_cancel_delayed(self, topic: str, key: str) -> Preview:
        """Return what `cancel_delayed` would do, with a row for each message that waits."""
        found = await self.list_delayed(topic=check_topic(topic), key=key)
        return Preview(
            f"{counted(len(found), 'delayed message')} for {topic} with the key {key}: "
            + ("never delivered" if found else "nothing waits"),
            ("that cannot be undone",) if found else (),
            ("message_id", "deliver_at", "size_bytes"),
            [
                (
                    message.unique_id or message.offset_message_id,
                    message.deliver_at.isoformat(timespec="milliseconds"),
                    message.size,
                )
                for message in found
            ],
            is_change=bool(found),
        )

    async def cancel_delayed(self, topic: str, key: str) -> list[CancelledMessage]:
        """Cancel the delayed messages for `topic` with this unique id or key; return the outcome for each.

        `CANCELLED` and `ALREADY_CANCELLED` are durable: the message is never delivered. `DELIVERED`: it was too late.

        Raises:
            NotFound: no broker knows such a message, in any state.
        """
        header = CancelDelayedHeader(check_topic(topic), key)
        answers = await self._ask_each(
            RequestCode.CANCEL_DELAYED_MESSAGE,
            header.to_ext(_MSGPACK),
            f"cancel {key} of {topic}",
            absent=(NotFound,),
        )
        results = [CancelResult.from_json(call.body) for call in answers.values()]
        return [message for result in results for message in result.messages]
