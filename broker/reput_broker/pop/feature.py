"""POP consumption of one broker: its services, its request processors and its figures.

It also assigns queues to members that leave their allocation to the broker (400), and knows how groups consume topics
(401; RocketMQ: QueryAssignmentProcessor).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import structlog
import trio

from reput_broker.delay.delayed_record import DelayRedirects
from reput_broker.delay.state import DelayState
from reput_broker.groups.group_state import check_not_brokers
from reput_broker.namesrv.route_info import RouteInfoManager
from reput_broker.observe.metrics import PopSources
from reput_broker.pop.ack import AckProcessor
from reput_broker.pop.order_info import FreeQueues, OrderInfos
from reput_broker.pop.polling import PopPolling
from reput_broker.pop.positions import PopPositions
from reput_broker.pop.processor import PeekProcessor, PopProcessor
from reput_broker.pop.revive_service import PopReviveService
from reput_broker.pop.state import InFlightMessages, PopQueues, PopState, ReviveLog
from reput_broker.remoting.client import RemoteUnreachable, RemotingClient
from reput_broker.remoting.request import Processor, Refusal, Request, Response, serves
from reput_broker.tables.table_saver import TableSaver
from reput_broker.tenure.core import Core
from reput_protocol.codes import MessageModel, Perm, RequestCode, ResponseCode
from reput_protocol.commands.pop import (
    MessageQueueAssignment,
    MessageRequestMode,
    QueryAssignmentBody,
    QueryAssignmentResult,
)
from reput_protocol.commands.topic import RouteHeader, TopicRoute
from reput_protocol.errors import BodyMalformed, ErrorCode, ReputError
from reput_protocol.names import RETRY_PREFIX, check_group, check_topic
from reput_protocol.record.message import MessageQueue
from reput_protocol.wire.header import HeaderType

log = structlog.get_logger(__name__)
PULL, POP = "PULL", "POP"
_KNOWN_S = 10.0
"""How long the answer of a name server is used again."""
_KNOWN_MAX = 10_000
_TIMEOUT_S = 3.0


class PopFeature:
    """POP consumption of a master.

    Args:
        orders: of groups that pop in order, as read at the start.
        routes: what other brokers have registered with this one.
    """

    def __init__(
        self,
        core: Core,
        delays: DelayState,
        orders: OrderInfos,
        delay_redirects: DelayRedirects,
        routes: RouteInfoManager,
    ) -> None:
        self._core = core
        self._orders_saver = TableSaver(orders)
        positions = PopPositions(core, on_reset=orders.clear)
        polling = PopPolling(core.hold)
        self._state = state = PopState(
            queues=PopQueues(core, positions),
            positions=positions,
            orders=orders,
            in_flight=InFlightMessages(core.clock_ms()),
            revive_log=ReviveLog(core, delay_redirects),
            polling=polling,
            free_queues=FreeQueues(orders, polling, core.clock_ms),
        )
        core.arrivals.follow(positions.dispatched)
        core.arrivals.follow(polling.dispatched)
        core.groups.when_forgotten(self._forget)
        self._revive = PopReviveService(core, delays.timers, state.in_flight)
        self._assignment = AssignmentProcessor(core, routes)
        self.processors = (
            PopProcessor(core, state),
            AckProcessor(core, state),
            PeekProcessor(core, state),
            self._assignment,
        )
        core.sources.pop = PopSources(state.in_flight.by_place, self._revive.take_behind_s)

    def tasks(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """Return the background tasks."""
        return (self._revive.run, self._state.free_queues.run, self._save_orders, self._assignment.close_at_end)

    async def _save_orders(self) -> None:
        """Save the table of ordered queues as often as the offsets."""
        while True:
            await trio.sleep(self._core.config.offsets.flush_interval)
            try:
                await self._orders_saver.save()
            except (ReputError, OSError) as error:
                log.warning(
                    "table_not_saved",
                    table="consumerOrderInfo",
                    detail=str(error),
                    hint="check the disk; the save is retried",
                )

    # -- forgetting ----------------------------------------------------------------------------------------

    def _forget(self, *, group: str | None = None, topic: str | None = None) -> None:
        state = self._state
        for table in (state.positions, state.orders, state.in_flight, self._core.tables.request_modes):
            table.forget(group=group, topic=topic)


class AssignmentProcessor(Processor):
    """Answers members that ask which queues to consume.

    The queues of a topic at all brokers are those that the name servers know.

    Args:
        routes: what this broker knows by itself; the answer if no name server is configured, or none answers.
    """

    def __init__(self, core: Core, routes: RouteInfoManager) -> None:
        config = core.config
        self._core = core
        self._routes = routes
        self._clients = [
            RemotingClient(address, tls=config.tls, credentials=config.access.credentials())
            for address in config.name_servers
        ]
        self._known: dict[str, tuple[float, list[MessageQueue]]] = {}

    @serves(RequestCode.QUERY_ASSIGNMENT)
    async def query(self, request: Request) -> Response:
        """Answer with the queues of a member; with none at all if the member should keep what it has."""
        body = request.content(QueryAssignmentBody)
        mode = self._core.tables.request_modes.get(body.topic, body.consumer_group)
        if mode is None or body.topic.startswith(RETRY_PREFIX):
            mode = MessageRequestMode(body.topic, body.consumer_group)
        found = self._allocate(body, mode, await self._queues_of(body.topic))
        assignments = None if found is None else [MessageQueueAssignment(queue, mode.mode) for queue in found]
        return Response(0, body=QueryAssignmentResult(assignments).to_json())

    def _allocate(
        self, body: QueryAssignmentBody, mode: MessageRequestMode, queues: list[MessageQueue]
    ) -> list[MessageQueue] | None:
        if not queues:
            return None
        if body.message_model is MessageModel.BROADCASTING:
            return queues
        members = self._core.groups.membership.client_ids(body.consumer_group)
        strategy = STRATEGIES.get(body.strategy_name)
        if strategy is None:
            log.warning(
                "allocation_unknown",
                group=body.consumer_group,
                strategy=body.strategy_name[:80],
                hint=f"use one of {', '.join(STRATEGIES)}",
            )
            return None
        if body.client_id not in members:  # its heartbeat has not come yet
            return None
        if mode.mode == POP:
            return allocate_for_pop(queues, members, body.client_id, strategy, mode.pop_share_queue_num)
        return strategy(queues, members, body.client_id)

    @serves(RequestCode.SET_MESSAGE_REQUEST_MODE)
    async def set_mode(self, request: Request) -> Response:
        """Set how a group consumes a topic, which may both be created later; it is saved before the answer."""
        mode = request.content(MessageRequestMode)
        if mode.topic.startswith(RETRY_PREFIX):
            raise Refusal(ErrorCode.NO_PERMISSION, "a retry topic is always pulled; set the mode of its topic")
        if mode.mode not in (PULL, POP):
            raise Refusal(ErrorCode.INVALID_ARGUMENT, f"mode {mode.mode[:40]!r} is neither PULL nor POP")
        check_topic(mode.topic)
        check_not_brokers(check_group(mode.consumer_group))
        self._core.tables.request_modes.put(mode)
        await self._core.tables.mode_saver.save()
        return Response()

    async def _queues_of(self, topic: str) -> list[MessageQueue]:
        """Return the queues of a topic, sorted; none if no broker has it."""
        if not self._clients:
            return _queues(topic, self._routes.route(topic, ""))
        known = self._known.get(topic)
        if known is not None and trio.current_time() < known[0]:
            return known[1]
        ext = RouteHeader(topic).to_ext(HeaderType.JSON)
        for client in self._clients:
            try:
                answer = await client.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext, timeout_s=_TIMEOUT_S)
                if answer.code not in (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST):
                    continue
                route = TopicRoute.from_json(answer.body) if answer.body else None
            except (RemoteUnreachable, BodyMalformed):
                continue
            found = _queues(topic, route)
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            self._known[topic] = trio.current_time() + _KNOWN_S, found
            return found
        return known[1] if known is not None else _queues(topic, self._routes.route(topic, ""))

    async def close_at_end(self) -> None:
        """Close the connections to the name servers when cancelled."""
        try:
            await trio.sleep_forever()
        finally:
            for client in self._clients:
                client.close()


def _queues(topic: str, route: TopicRoute | None) -> list[MessageQueue]:
    if route is None:
        return []
    return sorted(
        MessageQueue(topic, data.broker_name, queue_id)
        for data in route.queue_datas
        if data.perm & Perm.READ
        for queue_id in range(min(data.read_queue_nums, _KNOWN_MAX))
    )


Strategy = Callable[[Sequence[MessageQueue], Sequence[str], str], list[MessageQueue]]


def averagely(queues: Sequence[MessageQueue], members: Sequence[str], member: str) -> list[MessageQueue]:
    """Return consecutive queues; the first members get one more (RocketMQ: AllocateMessageQueueAveragely)."""
    index = members.index(member)
    share, rest = divmod(len(queues), len(members))
    start = index * share + min(index, rest)
    return list(queues[start : start + share + (index < rest)])


def by_circle(queues: Sequence[MessageQueue], members: Sequence[str], member: str) -> list[MessageQueue]:
    """Return every n-th queue (RocketMQ: AllocateMessageQueueAveragelyByCircle)."""
    return list(queues[members.index(member) :: len(members)])


STRATEGIES: dict[str, Strategy] = {"AVG": averagely, "AVG_BY_CIRCLE": by_circle}


def allocate_for_pop(
    queues: Sequence[MessageQueue], members: Sequence[str], member: str, strategy: Strategy, share_with: int
) -> list[MessageQueue]:
    """Return what a member that pops gets (RocketMQ: allocate4Pop).

    Args:
        queues, members: sorted; `member` is one of them.
        share_with: how many members that follow this one share their queues with it; 0 or less: all.
    """
    if share_with <= 0 or share_with >= len(members) - 1:
        return sorted({MessageQueue(queue.topic, queue.broker_name, -1) for queue in queues})
    index = members.index(member)
    if len(members) > len(queues):
        return [queues[index % len(queues)]]
    found: dict[MessageQueue, None] = {}
    for step in range(share_with + 1):
        found |= dict.fromkeys(strategy(queues, members, members[(index + step) % len(members)]))
    return list(found)
