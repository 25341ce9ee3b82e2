"""A client that makes up topics and groups does not make the metrics page grow without end."""

import urllib.request
from collections.abc import Callable

from reput_broker.background import BackgroundBroker
from reput_protocol.codes import RequestCode
from reput_protocol.wire.header import HeaderType
from support.raw_client import RawClient, in_letters
from support.scrapes import read, value

NAMES = 60


def test_names_that_one_client_makes_up(new_reput_broker: Callable[..., BackgroundBroker]) -> None:
    broker = new_reput_broker(http_port=0, metrics={"max_series": 200})
    with RawClient(broker.address, HeaderType.JSON) as client:
        for number in range(NAMES):
            client.send(RequestCode.SEND_MESSAGE_V2, in_letters(f"topic-{number}", d="1"), b"x")
            pull = {
                "consumerGroup": f"group-{number}", "topic": f"topic-{number}", "queueId": "0",
                "queueOffset": "0", "maxMsgNums": "1", "sysFlag": "5", "commitOffset": "0",
                "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0", "expressionType": "TAG",
            }  # fmt: skip
            client.send(RequestCode.PULL_MESSAGE, pull)
        assert {client.receive()[0].code for _ in range(2 * NAMES)} == {0}
    with urllib.request.urlopen(f"http://{broker.http_address}/metrics", timeout=10.0) as answer:
        text = answer.read().decode()
    page = read(text)
    of_names = [labels for _, labels in page if {"topic", "group"} & {name for name, _ in labels}]
    assert len(of_names) <= 200
    dropped = value(page, "reput_metrics_dropped_series")
    assert dropped > 40 * NAMES
    assert value(page, "reput_ready") == 1
    assert not any(name == "reput_queue_end_offset" for name, _ in page)
