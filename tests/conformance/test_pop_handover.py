"""What was popped from one broker and not acknowledged is redelivered by the other, once; the rest is not."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from conformance.apache import Apache, free_broker_port
from conformance.test_delay_handover import reput_on
from reput_protocol.codes import RequestCode
from reput_protocol.commands.group import SubscriptionGroupConfig
from reput_protocol.wire.header import HeaderType
from support import pops
from support.pops import Popped
from support.raw_client import RawClient, in_letters

pytestmark = [pytest.mark.process, pytest.mark.long]

TOPIC, GROUP = "orders", "billing"
INVISIBLE_MS = 12_000
COMES_WITHIN_S = 60.0


@contextmanager
def client(port: int) -> Iterator[RawClient]:
    with RawClient(f"127.0.0.1:{port}", HeaderType.JSON) as found:
        yield found


def prepare(port: int) -> None:
    """Create topic and group, and send three messages."""
    topic = {
        "topic": TOPIC, "readQueueNums": "1", "writeQueueNums": "1", "perm": "6", "defaultTopic": "TBW102",
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
    }  # fmt: skip
    with client(port) as found:
        header, _ = found.request(RequestCode.UPDATE_AND_CREATE_TOPIC, topic)
        assert header.code == 0, header.remark
        group = SubscriptionGroupConfig(GROUP).to_json()
        header, _ = found.request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, group)
        assert header.code == 0, header.remark
        for body in (b"acked", b"lost", b"new"):
            ext = in_letters(TOPIC, e="0", i=f"UNIQ_KEY\x01ID-{body.decode()}\x02")
            header, _ = found.request(RequestCode.SEND_MESSAGE_V2, ext, body)
            assert header.code == 0, header.remark


def pop(port: int, invisible_ms: int = INVISIBLE_MS) -> list[Popped]:
    """Pop one message, if there is one."""
    with client(port) as found:
        fields = {"maxMsgNums": "1", "pollTime": "1000", "invisibleTime": str(invisible_ms)}
        return pops.pop(found, GROUP, TOPIC, **fields)


def acknowledge(port: int, one: Popped) -> None:
    with client(port) as found:
        pops.acknowledge(found, GROUP, TOPIC, one)


def begin(port: int) -> int:
    """Pop two messages and acknowledge the first; return when the second is visible again, in ms."""
    prepare(port)
    time.sleep(1)
    (first,), (second,) = pop(port), pop(port)
    assert [first.record.body, second.record.body] == [b"acked", b"lost"]
    acknowledge(port, first)
    time.sleep(1)
    return second.handle.pop_time + INVISIBLE_MS


def drain(port: int, visible_at_ms: int) -> None:
    """Check what the other broker has: the message that was not popped, and later the one that was lost."""
    (new,) = pop(port)
    assert (new.record.body, new.record.reconsume_times) == (b"new", 0)
    acknowledge(port, new)
    deadline = time.monotonic() + COMES_WITHIN_S
    again: list[Popped] = []
    while not again:
        assert time.monotonic() < deadline, "it did not come back"
        again = pop(port)
    assert time.time_ns() // 1_000_000 >= visible_at_ms - 1000
    assert [(one.record.body, one.record.reconsume_times) for one in again] == [(b"lost", 1)]
    acknowledge(port, again[0])
    time.sleep(INVISIBLE_MS / 1000 + 3)
    assert pop(port) == []


def test_rocketmq_redelivers_what_was_popped_from_reput(tmp_path: Path) -> None:
    data_dir, port = tmp_path / "store", free_broker_port()
    with reput_on(data_dir, port) as reput:
        visible_at_ms = begin(port)
        assert reput.terminate() == 0
    with Apache("broker", data_dir, port=port, group="readers", timer_wheel=True) as apache:
        drain(port, visible_at_ms)
        apache.stop()


def test_reput_redelivers_what_was_popped_from_rocketmq(tmp_path: Path) -> None:
    data_dir, port = tmp_path / "store", free_broker_port()
    with Apache("broker", data_dir, port=port, group="readers", timer_wheel=True) as apache:
        visible_at_ms = begin(port)
        apache.stop()
    with reput_on(data_dir, port) as reput:
        drain(port, visible_at_ms)
        assert reput.terminate() == 0
