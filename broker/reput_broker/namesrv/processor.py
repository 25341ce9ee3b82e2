"""What a name server answers (RocketMQ: DefaultRequestProcessor and ClientRequestProcessor of the name server)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import trio

from reput_broker.config.value_types import checked_address
from reput_broker.namesrv.route_info import BrokerIdTaken, RouteInfoManager, has_unit, has_unit_subscription
from reput_broker.remoting.request import Processor, Refusal, Request, Response, serves, write_in_turns
from reput_broker.tables.config_file import DataVersion
from reput_broker.tables.table_saver import TableSaver
from reput_broker.tables.tables import KVConfigManager
from reput_broker.tables.topic_access import no_topic
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.commands import namesrv as commands
from reput_protocol.commands.base import read_json
from reput_protocol.commands.topic import DeleteTopicHeader, KVTable, RouteHeader, TopicList, TopicRoute
from reput_protocol.errors import ErrorCode
from reput_protocol.names import DEFAULT_TOPIC
from reput_protocol.wire.header import Value

_LOOK_FOR_SILENT_S = 5.0
_ALI_ONS_VERSION: Final = 121


class NameServerProcessor(Processor):
    """Answers with what brokers have registered, and with the broker around it.

    Args:
        advertise: the address of the broker around it; None for the one that the client dialled.
    """

    def __init__(
        self,
        routes: RouteInfoManager,
        kv_config: KVConfigManager,
        kv_saver: TableSaver,
        *,
        advertise: str | None = None,
    ) -> None:
        self._routes = routes
        self._kv_config = kv_config
        self._kv_saver = kv_saver
        self._advertise = advertise

    def tasks(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """Return the tasks that run as long as the name service does."""
        return (self.look_for_silent_brokers,)

    async def look_for_silent_brokers(self) -> None:
        """Drop brokers that are silent for too long, until cancelled."""
        while True:
            await trio.sleep(_LOOK_FOR_SILENT_S)
            self._routes.drop_silent()

    # Questions of clients and tools

    @serves(RequestCode.GET_ROUTEINFO_BY_TOPIC)
    def route(self, request: Request) -> Response:
        """Answer with the brokers that have a topic, their addresses and queues."""
        topic = RouteHeader.from_ext(request.ext).topic
        route = self._route(topic, request)
        if route is None:
            if request.is_native:
                raise no_topic(topic)
            if self._lacks_fallback(request):
                return Response(0)
            # RocketMQ's wording: its clients and tools show it as it is.
            text = f"No topic route info in name server for the topic: {topic}"
            return Response(int(ResponseCode.TOPIC_NOT_EXIST), remark=text)
        route.order_topic_conf = self._kv_config.get(commands.ORDER_TOPIC_NAMESPACE, topic)
        return Response(0, self._facts_for(request), route.to_json())

    def _lacks_fallback(self, request: Request) -> bool:
        """Whether the client is ali-ons, which asks for the template's route only after success without a route.

        RocketMQ's other clients do so after TOPIC_NOT_EXIST.
        """
        own = self._routes.own
        return request.header.version == _ALI_ONS_VERSION and own is not None and own.topics.template() is not None

    def _route(self, topic: str, request: Request) -> TopicRoute | None:
        own, address = self._routes.own, self._address(request)
        if own is None or topic != DEFAULT_TOPIC or not request.is_native:
            route = self._routes.route(topic, address)
            # RocketMQ's consumers ask before their first heartbeat, and not again for 30 s.
            makes = route is None and not request.is_native and request.may("read", topic)
            if makes and own is not None and own.make_retry_topic(topic):
                route = self._routes.route(topic, address)
            return route
        template = own.topics.template()
        return None if template is None else self._routes.route_over({own.name: own.queue_data(template)}, address)

    @serves(RequestCode.GET_BROKER_CLUSTER_INFO)
    async def cluster_info(self, request: Request) -> Response:
        """Answer with all brokers and clusters."""
        info = self._routes.cluster_info(self._address(request))
        return Response(0, self._facts_for(request), await write_in_turns(info))

    @serves(RequestCode.GET_BROKER_MEMBER_GROUP)
    def member_group(self, request: Request) -> Response:
        """Answer with the members of a broker name."""
        header = commands.MemberGroupHeader.from_ext(request.ext)
        group = self._routes.member_group(header.cluster_name, header.broker_name, self._address(request))
        return Response(0, body=commands.MemberGroup(group).to_json())

    @serves(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    def topics(self, request: Request) -> Response:
        """Answer with the names of all topics."""
        return self._topic_list(request, self._routes.topics())

    @serves(RequestCode.GET_TOPICS_BY_CLUSTER)
    def topics_by_cluster(self, request: Request) -> Response:
        """Answer with the names of the topics of a cluster."""
        cluster = commands.TopicsByClusterHeader.from_ext(request.ext).cluster
        return self._topic_list(request, self._routes.topics_of_cluster(cluster))

    @serves(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
    def system_topics(self, request: Request) -> Response:
        """Answer with the names of clusters and brokers, and a broker that knows the other system topics."""
        return self._topic_list(request, self._routes.system_topics())

    @serves(RequestCode.GET_UNIT_TOPIC_LIST)
    def unit_topics(self, request: Request) -> Response:
        """Answer with the names of the topics that belong to a unit."""
        return self._topic_list(request, self._routes.topics_with_flags(has_unit))

    @serves(RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST)
    def unit_subscription_topics(self, request: Request) -> Response:
        """Answer with the names of the topics that units subscribe to."""
        return self._topic_list(request, self._routes.topics_with_flags(has_unit_subscription))

    @serves(RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST)
    def other_unit_subscription_topics(self, request: Request) -> Response:
        """Answer with the names of the topics that units subscribe to and that belong to none."""

        def wanted(flags: int) -> bool:
            return has_unit_subscription(flags) and not has_unit(flags)

        return self._topic_list(request, self._routes.topics_with_flags(wanted))

    def _topic_list(self, request: Request, topics: list[str]) -> Response:
        return Response(0, body=TopicList(topics, self._routes.any_address(self._address(request))).to_json())

    def _address(self, request: Request) -> str:
        """Return the address of the broker around this name service: configured, or dialled by the client."""
        return self._advertise or request.client.dialled_address

    def _facts_for(self, request: Request) -> dict[str, Value]:
        """Return what tells the bundled client which broker has answered."""
        own = self._routes.own
        if own is None or not request.is_native:
            return {}
        who_may_lead = {} if own.knows_master else self._routes.members.who_may_lead()
        return {"brokerName": own.name, "brokerId": own.tenure.broker_id, "startId": own.start_id, **who_may_lead}

    # Brokers

    @serves(RequestCode.REGISTER_BROKER)
    def register(self, request: Request) -> Response:
        """Take the registration of a broker; answer with its master and the queue numbers of ordered topics."""
        header = commands.RegisterBrokerHeader.from_ext(request.ext)
        if header.body_crc32 and header.body_crc32 != commands.body_crc32(request.body):
            raise Refusal(
                ErrorCode.MALFORMED,
                f"the body of the registration has checksum {commands.body_crc32(request.body)} and not "
                f"{header.body_crc32}; it was damaged on its way, send it again",
            )
        try:
            checked_address(header.broker_addr)
        except ValueError as error:  # it would be in the routes of every client
            raise Refusal(ErrorCode.INVALID_ARGUMENT, f"brokerAddr of the registration: {error}") from None
        body = commands.RegisterBrokerBody.decode(request.body)
        try:
            answer = self._routes.register(header, body.table, request.client, self._address(request))
        except BrokerIdTaken as error:
            raise Refusal(ErrorCode.DUPLICATE, str(error), response_code=ResponseCode.SYSTEM_ERROR) from None
        ordered = self._kv_config.namespace(commands.ORDER_TOPIC_NAMESPACE)
        return Response(
            0, answer.to_ext(request.header_type), b"" if ordered is None else KVTable(dict(ordered)).to_json()
        )

    @serves(RequestCode.UNREGISTER_BROKER)
    def unregister(self, request: Request) -> Response:
        """Drop a broker that leaves."""
        self._routes.unregister(commands.UnregisterBrokerHeader.from_ext(request.ext))
        return Response()

    @serves(RequestCode.BROKER_HEARTBEAT)
    def heartbeat(self, request: Request) -> Response:
        """Note that a broker is alive."""
        self._routes.heartbeat(commands.BrokerHeartbeatHeader.from_ext(request.ext).broker_addr)
        return Response()

    @serves(RequestCode.QUERY_DATA_VERSION)
    def data_version(self, request: Request) -> Response:
        """Answer whether a broker has to register its topics again; this counts as a heartbeat."""
        header = commands.QueryDataVersionHeader.from_ext(request.ext)
        asked = DataVersion.from_json(read_json(request.body) if request.body else None)
        known = self._routes.version_of(header.broker_addr)
        self._routes.heartbeat(header.broker_addr)
        return Response(
            0, {"changed": "false" if known == asked else "true"}, b"" if known is None else known.encoded()
        )

    # Changes by administrators

    @serves(RequestCode.DELETE_TOPIC_IN_NAMESRV)
    def delete_topic(self, request: Request) -> Response:
        """Forget a topic of registered brokers; the broker around this name service deletes its own with 215."""
        header = DeleteTopicHeader.from_ext(request.ext)
        self._routes.delete_topic(header.topic, header.cluster_name)
        return Response()

    @serves(RequestCode.REGISTER_TOPIC_IN_NAMESRV)
    def register_topic(self, request: Request) -> Response:
        """Note a topic of registered brokers."""
        topic = commands.RegisterTopicHeader.from_ext(request.ext).topic
        self._routes.register_topic(topic, TopicRoute.from_json(request.body, is_trusted=False).queue_datas)
        return Response()

    @serves(RequestCode.WIPE_WRITE_PERM_OF_BROKER)
    def wipe_write_perm(self, request: Request) -> Response:
        """Take write permission from all topics of a broker, in routes."""
        count = self._routes.wipe_write_perm(commands.BrokerPermissionHeader.from_ext(request.ext).broker_name)
        return Response(0, {"wipeTopicCount": count if request.is_native else str(count)})

    @serves(RequestCode.ADD_WRITE_PERM_OF_BROKER)
    def add_write_perm(self, request: Request) -> Response:
        """Give write permission back to all topics of a broker, in routes."""
        count = self._routes.add_write_perm(commands.BrokerPermissionHeader.from_ext(request.ext).broker_name)
        return Response(0, {"addTopicCount": count if request.is_native else str(count)})

    # Settings

    @serves(RequestCode.PUT_KV_CONFIG)
    async def put_kv_config(self, request: Request) -> Response:
        """Set a value; it is on disk when this is answered."""
        header = commands.PutKVConfigHeader.from_ext(request.ext)
        self._kv_config.put(header.namespace, header.key, header.value)
        await self._kv_saver.save()
        return Response()

    @serves(RequestCode.GET_KV_CONFIG)
    def get_kv_config(self, request: Request) -> Response:
        """Answer with a value."""
        header = commands.KVConfigHeader.from_ext(request.ext)
        value = self._kv_config.get(header.namespace, header.key)
        if value is None:
            text = f"No config item, Namespace: {header.namespace} Key: {header.key}"
            return Response(int(ResponseCode.QUERY_NOT_FOUND), remark=text)
        return Response(0, {"value": value})

    @serves(RequestCode.DELETE_KV_CONFIG)
    async def delete_kv_config(self, request: Request) -> Response:
        """Delete a value, if there is one; it is gone from the disk when this is answered."""
        header = commands.KVConfigHeader.from_ext(request.ext)
        self._kv_config.delete(header.namespace, header.key)
        await self._kv_saver.save()
        return Response()

    @serves(RequestCode.GET_KVLIST_BY_NAMESPACE)
    def kv_list(self, request: Request) -> Response:
        """Answer with all values of a namespace."""
        namespace = commands.KVListHeader.from_ext(request.ext).namespace
        values = self._kv_config.namespace(namespace)
        if values is None:
            text = f"No config item, Namespace: {namespace}"
            return Response(int(ResponseCode.QUERY_NOT_FOUND), remark=text)
        return Response(0, body=KVTable(dict(values)).to_json())
