"""Requests that wait, by RocketMQ's thread pools."""

from __future__ import annotations

from typing import Final

from reput_broker.observe.counters import PULL_WAIT_CODE, UNKNOWN_CODE, Counters
from reput_broker.observe.rocketmq_catalogue import PROCESSORS
from reput_protocol.codes import RequestCode

_PROCESSOR_OF: Final = {
    RequestCode.SEND_MESSAGE: "send",
    RequestCode.SEND_MESSAGE_V2: "send",
    RequestCode.SEND_BATCH_MESSAGE: "send",
    RequestCode.PUT_MESSAGE: "send",
    RequestCode.CONSUMER_SEND_MSG_BACK: "send",
    RequestCode.PULL_MESSAGE: "pull",
    RequestCode.LITE_PULL_MESSAGE: "lite_pull",
    RequestCode.QUERY_MESSAGE: "query_message",
    RequestCode.VIEW_MESSAGE_BY_ID: "query_message",
    RequestCode.UNREGISTER_CLIENT: "client_manager",
    RequestCode.CHECK_CLIENT_CONFIG: "client_manager",
    RequestCode.HEART_BEAT: "heartbeat",
    RequestCode.END_TRANSACTION: "transaction",
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: "consumer_manager",
    RequestCode.UPDATE_CONSUMER_OFFSET: "consumer_manager",
    RequestCode.QUERY_CONSUMER_OFFSET: "consumer_manager",
    RequestCode.SEND_REPLY_MESSAGE: "reply",
    RequestCode.SEND_REPLY_MESSAGE_V2: "reply",
}
"""RocketMQ's thread pools; other requests are those of `admin`. `ack` and `async_put` have none here."""


def waiting_requests(counters: Counters) -> dict[str, int]:
    """Return how many requests were read and are not answered yet, without held pulls, by processor."""
    waiting = dict.fromkeys(PROCESSORS, 0)
    held = 0
    for (_, code), traffic in counters.requests.items():
        if code == PULL_WAIT_CODE:  # a held pull counts under the request that was held, too
            held += traffic.inflight
        else:
            processor = "admin" if code == UNKNOWN_CODE else _PROCESSOR_OF.get(RequestCode(code), "admin")
            waiting[processor] += traffic.inflight
    waiting["pull"] = max(0, waiting["pull"] - held)
    return waiting
