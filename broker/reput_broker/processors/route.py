"""What a name server answers: routes (105), clusters (106), topics (206), deletions (216).

(RocketMQ: DefaultRequestProcessor of the name server.)
"""

from __future__ import annotations

import secrets

from reput_broker.config.model import BrokerConfig
from reput_broker.processors.topic_access import no_topic
from reput_broker.request import Handler, Request, Response
from reput_broker.tables.topics import TopicConfigManager
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.commands.topic import (
    BrokerData,
    ClusterInfo,
    DeleteTopicHeader,
    QueueData,
    RouteHeader,
    TopicList,
    TopicRoute,
)
from reput_protocol.names import DEFAULT_TOPIC
from reput_protocol.wire.header import Value


class RouteProcessor:
    """Answers with this broker as the only one of its cluster."""

    def __init__(self, config: BrokerConfig, topics: TopicConfigManager) -> None:
        self._config = config
        self._topics = topics
        # Tells this start from another broker of the same name behind the advertised address.
        self._facts = {"brokerName": config.broker_name, "startId": secrets.token_hex(8)}

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self.route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self.cluster_info,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self.topics,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self.delete_topic,
        }

    def route(self, request: Request) -> Response:
        """Answer with the broker that serves a topic, its address and its queues."""
        topic = RouteHeader.from_ext(request.ext).topic
        is_template = topic == DEFAULT_TOPIC and request.is_native
        config = self._topics.template() if is_template else self._topics.get(topic)
        if config is None:
            if request.is_native:
                raise no_topic(topic)
            # RocketMQ's wording: its clients and tools show it as it is.
            text = f"No topic route info in name server for the topic: {topic}"
            return Response(int(ResponseCode.TOPIC_NOT_EXIST), remark=text)
        queues = QueueData(
            self._config.broker_name,
            config.read_queue_nums,
            config.write_queue_nums,
            config.perm,
            config.topic_sys_flag,
        )
        return Response(0, self._facts_for(request), TopicRoute([queues], [self._broker(request)]).to_json())

    def cluster_info(self, request: Request) -> Response:
        """Answer with the one broker of the one cluster."""
        cluster, name = self._config.cluster, self._config.broker_name
        info = ClusterInfo({name: self._broker(request)}, {cluster: [name]})
        return Response(0, self._facts_for(request), info.to_json())

    def topics(self, request: Request) -> Response:
        """Answer with the names of all topics."""
        return Response(0, body=TopicList(sorted(self._topics.all()), self._address(request)).to_json())

    def delete_topic(self, request: Request) -> Response:
        """Accept the second half of RocketMQ's deletion of a topic: there is no other name server."""
        DeleteTopicHeader.from_ext(request.ext)
        return Response()

    def _broker(self, request: Request) -> BrokerData:
        return BrokerData(self._config.cluster, self._config.broker_name, {0: self._address(request)})

    def _address(self, request: Request) -> str:
        """Return the configured address, or the one that the client dialled."""
        return self._config.advertise or request.client.dialled_address

    def _facts_for(self, request: Request) -> dict[str, Value]:
        return dict(self._facts) if request.is_native else {}
