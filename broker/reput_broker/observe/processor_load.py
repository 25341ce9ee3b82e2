"""Requests that wait, by RocketMQ's thread pools."""

from __future__ import annotations

from reput_broker.observe.counters import PULL_WAIT_CODE, Counters
from reput_broker.observe.rocketmq_catalogue import PROCESSORS
from reput_protocol.commands.table import REQUESTS


def waiting_requests(counters: Counters) -> dict[str, int]:
    """Return how many requests were read and are not answered yet, without held pulls, by processor."""
    waiting = dict.fromkeys(PROCESSORS, 0)
    held = 0
    for (_, code), traffic in counters.requests.items():
        if code == PULL_WAIT_CODE:  # a held pull counts under the request that was held, too
            held += traffic.inflight
        else:
            row = REQUESTS.get(code)  # of an unknown code there is none
            waiting["admin" if row is None else row.pool] += traffic.inflight
    waiting["pull"] = max(0, waiting["pull"] - held)
    return waiting
