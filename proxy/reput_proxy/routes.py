"""QueryRoute and QueryAssignment: the queues of a topic, all of them at the proxy's own address."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address
from typing import Final

from reput_client.transport.routing import Route
from reput_protocol.names import check_topic
from reput_proxy import messaging_pb2 as pb
from reput_proxy.proxy import Call
from reput_proxy.rejections import Code, Rejected, check_group_and_topic, check_name, ok

_EVERY_TYPE: Final = (pb.NORMAL, pb.FIFO, pb.DELAY, pb.TRANSACTION, pb.PRIORITY)
_TYPES: Final[dict[str, tuple[pb.MessageType, ...]]] = {
    "NORMAL": (pb.NORMAL,),
    "FIFO": (pb.FIFO,),
    "DELAY": (pb.DELAY,),
    "TRANSACTION": (pb.TRANSACTION,),
    "PRIORITY": (pb.PRIORITY,),
}
_LATER_TYPES: Final = frozenset({pb.PRIORITY})
"""Types that RocketMQ's clients know only from 5.4 on."""
_ANY_QUEUE: Final = -1


async def accepted_types(call: Call, topic: str) -> Sequence[pb.MessageType]:
    """Return what messages a topic takes, by its attribute `message.type`; without it all of them."""
    config = await call.upstream.topics.get(topic)
    return _EVERY_TYPE if config is None else _TYPES.get(config.message_type, _EVERY_TYPE)


async def query_route(call: Call, request: pb.QueryRouteRequest) -> pb.QueryRouteResponse:
    """Answer QueryRoute; for a topic that its first message creates, with the queues that it will have."""
    topic = request.topic.name
    check_name(check_topic, topic, Code.ILLEGAL_TOPIC)
    endpoints = _endpoints(call, request.endpoints)
    session = call.upstream.session
    route = await session.publish_route(topic, session.deadline(call.timeout_s))
    accepted = await _listed_types(call, topic)
    readable, writable = set(route.readable), set(route.writable)
    queues = [
        pb.MessageQueue(
            topic=request.topic,
            id=queue.queue_id,
            permission=pb.READ_WRITE
            if queue in readable and queue in writable
            else pb.READ
            if queue in readable
            else pb.WRITE,
            broker=pb.Broker(name=queue.broker_name, id=0, endpoints=endpoints),
            accept_message_types=accepted,
        )
        for queue in sorted(readable | writable)
    ]
    return pb.QueryRouteResponse(status=ok(), message_queues=queues)


async def query_assignment(call: Call, request: pb.QueryAssignmentRequest) -> pb.QueryAssignmentResponse:
    """Answer QueryAssignment: one entry for each broker, from which every client receives."""
    topic, group = request.topic.name, request.group.name
    check_group_and_topic(group, topic)
    endpoints = _endpoints(call, request.endpoints)
    session = call.upstream.session
    route = await session.publish_route(topic, session.deadline(call.timeout_s))
    names = _readable_brokers(route)
    if not names:
        raise Rejected(Code.FORBIDDEN, f"topic {topic!r} has no readable queue")
    assignments = [
        pb.Assignment(
            message_queue=pb.MessageQueue(
                topic=request.topic,
                id=_ANY_QUEUE,
                permission=pb.READ_WRITE,
                broker=pb.Broker(name=name, id=0, endpoints=endpoints),
            )
        )
        for name in names
    ]
    return pb.QueryAssignmentResponse(status=ok(), assignments=assignments)


async def _listed_types(call: Call, topic: str) -> Sequence[pb.MessageType]:
    """Return the types in the route of a topic: a client for Java fails if it does not know one of them.

    So a topic that takes all messages lists those that every client knows, as with RocketMQ's proxy.
    """
    accepted = await accepted_types(call, topic)
    return [kind for kind in accepted if kind not in _LATER_TYPES] or accepted


def _readable_brokers(route: Route) -> list[str]:
    return list(dict.fromkeys(queue.broker_name for queue in route.readable))


def _endpoints(call: Call, given: pb.Endpoints) -> pb.Endpoints:
    """Return where clients reach the proxy: the address that is advertised, or that the client has dialled.

    Raises:
        Rejected: neither is known.
    """
    advertised = call.proxy.advertised
    if advertised is not None:
        return advertised
    if not given.addresses:
        raise Rejected(Code.ILLEGAL_ACCESS_POINT, "the request does not say which address the client has dialled")
    return given


def endpoints_of(host: str, port: int) -> pb.Endpoints:
    """Return an address as clients get it."""
    try:
        scheme = pb.IPv6 if ip_address(host).version == 6 else pb.IPv4
    except ValueError:
        scheme = pb.DOMAIN_NAME
    return pb.Endpoints(scheme=scheme, addresses=[pb.Address(host=host, port=port)])
