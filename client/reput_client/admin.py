"""The admin client: brokers and delayed messages. Its other methods are in `admin_topics.py`, `admin_dead_letters.py`,
`admin_groups.py` and `admin_users.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reput_client.admin_dead_letters import DeadLetterAdmin
from reput_client.admin_groups import GroupAdmin
from reput_client.admin_users import UserAdmin
from reput_client.cluster_members import ClusterMember, cluster_members
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
from reput_protocol.commands.operation import (
    BrokerDescription,
    ClientDescription,
    ClientDescriptions,
    ConfigChanged,
    ConfigChanges,
    ConfigOption,
    ConfigOptions,
    FlushedBody,
    Intake,
    IntakeName,
    SetConfigBody,
    SetIntakeHeader,
)
from reput_protocol.commands.topic import ClusterInfo, KVTable
from reput_protocol.errors import NotFound
from reput_protocol.names import check_topic
from reput_protocol.wire.header import HeaderType

_MSGPACK = HeaderType.MSGPACK


class Admin(DeadLetterAdmin, GroupAdmin, UserAdmin):
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

        Sizes (`..._b`) are in bytes, ages (`..._s`) in seconds, times in seconds since 1970.
        """
        call = await self._ask_one(broker_name, RequestCode.DESCRIBE_BROKER, {}, "state of the broker")
        return BrokerDescription.from_json(call.body).status

    async def list_clients(self, broker_name: str | None = None) -> list[ClientDescription]:
        """Return the connections of a broker, this client's included; `broker_name` as for `describe_broker`."""
        call = await self._ask_one(broker_name, RequestCode.LIST_CLIENTS, {}, "clients of the broker")
        return ClientDescriptions.from_json(call.body).clients

    async def broker_config(self, broker_name: str | None = None) -> list[ConfigOption]:
        """Return the options of a broker, with what set each; `broker_name` as for `describe_broker`."""
        call = await self._ask_one(broker_name, RequestCode.GET_CONFIG, {}, "configuration of the broker")
        return ConfigOptions.from_json(call.body).options

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
        messages: list[DelayedMessage] = []
        masters = await self._masters()
        for name in masters:
            found: list[DelayedMessage] = []
            cursor: str | None = ""
            while cursor is not None and len(found) < max_messages:
                page = await self.delayed_page(
                    topic=topic,
                    key=key,
                    max_messages=max_messages - len(found),
                    cursor=cursor,
                    broker_name=name,
                )
                found += page.messages
                cursor = page.cursor
            messages += found
        if len(masters) > 1:
            messages.sort(key=lambda message: message.deliver_timestamp)
        return messages[:max_messages]

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
