"""What the requests of POP share."""

from __future__ import annotations

from dataclasses import dataclass

from reput_broker.pop.free_queues import FreeQueues
from reput_broker.pop.in_flight import InFlightMessages
from reput_broker.pop.order_info import OrderInfos
from reput_broker.pop.polling import PopPolling
from reput_broker.pop.positions import PopPositions
from reput_broker.pop.queues import PopQueues
from reput_broker.pop.revive_log import ReviveLog


@dataclass(slots=True, kw_only=True)
class PopState:
    """The state of POP in one tenure.

    Attributes:
        positions: how far groups have popped.
        orders: what groups that pop in order have in flight, which blocks its queue.
        free_queues: wakes pops of queues that are not blocked any more.
    """

    queues: PopQueues
    positions: PopPositions
    orders: OrderInfos
    in_flight: InFlightMessages
    revive_log: ReviveLog
    polling: PopPolling
    free_queues: FreeQueues
