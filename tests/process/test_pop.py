"""POP under kill -9: nothing that was stored is lost, and nothing that was acknowledged is redelivered."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from reput_protocol.codes import RequestCode
from support.broker_process import BrokerProcess
from support.pops import acknowledge, pop
from support.raw_client import RawClient, in_letters

pytestmark = [pytest.mark.process, pytest.mark.fault]

TOPIC, GROUP = "orders", "billing"
INVISIBLE_MS = 1000
KILLS = 2
MESSAGES_BETWEEN = 100
DEADLINE_S = 150.0


class Load:
    """A producer and a member of the group; both connect again when the broker was killed."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.ended = threading.Event()
        self.sent = 0
        self.stored: list[bytes] = []
        self.delivered: set[bytes] = set()
        self.done: set[bytes] = set()
        """Those that the broker has confirmed as acknowledged while they were invisible."""
        self.maybe_done: set[bytes] = set()
        """Those whose acknowledgement had no answer, or came too late."""
        self.acknowledged_pops: set[tuple[bytes, str]] = set()
        """Messages that came for the first time and were acknowledged, with the time of that pop."""
        self.redelivered_though_acknowledged: list[bytes] = []
        self.redelivered = 0

    def produce(self) -> None:
        while not self.ended.is_set():
            try:
                with RawClient(self.address) as client:
                    while not self.ended.is_set():
                        body = b"%d" % self.sent
                        self.sent += 1
                        fields = in_letters(TOPIC, ack="flushed")
                        header, _ = client.request(RequestCode.SEND_MESSAGE_V2, fields, body)
                        assert header.code == 0, header.remark
                        self.stored.append(body)
            except (OSError, EOFError):
                time.sleep(0.01)

    def consume(self) -> None:
        while not self.stored:  # the first message creates the topic
            time.sleep(0.01)
        while not self.is_over():
            try:
                with RawClient(self.address) as client:
                    while not self.is_over():
                        self._take(client)
            except (OSError, EOFError):
                time.sleep(0.01)

    def is_over(self) -> bool:
        return self.ended.is_set() and self.done | self.maybe_done >= {*self.stored}

    def look_again(self) -> None:
        """Take what comes once every message that was invisible until now is visible."""
        ends_at = time.monotonic() + INVISIBLE_MS / 1000 + 1.0
        with RawClient(self.address) as client:
            while time.monotonic() < ends_at:
                self._take(client)

    def _take(self, client: RawClient) -> None:
        """Pop up to 8 messages, and acknowledge all but the last of 8 that come for the first time."""
        found = pop(client, GROUP, TOPIC, maxMsgNums="8", invisibleTime=str(INVISIBLE_MS), pollTime="200")
        for one in found:
            body = one.record.body
            # That of another pop is no fault: its answer was lost in a kill, or its redelivery was repeated by one.
            if (body, one.record.property_map().get("1ST_POP_TIME", "")) in self.acknowledged_pops:
                self.redelivered_though_acknowledged.append(body)
            self.redelivered += one.record.reconsume_times > 0
            self.delivered.add(body)
        if len(found) == 8 and not any(one.record.reconsume_times for one in found):
            found.pop()
        for one in found:
            body = one.record.body
            self.maybe_done.add(body)
            acknowledge(client, GROUP, TOPIC, one)
            # The clock of the broker is this one's.
            if time.time_ns() // 1_000_000 < one.handle.pop_time + one.handle.invisible_time:
                self.maybe_done.discard(body)
                self.done.add(body)
                if one.record.reconsume_times == 0:
                    self.acknowledged_pops.add((body, str(one.handle.pop_time)))


def test_kills_under_load(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        load = Load(broker.address)
        threads = [threading.Thread(target=work, daemon=True) for work in (load.produce, load.consume)]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + DEADLINE_S
        for number in range(1, KILLS + 1):
            while min(len(load.stored), len(load.done)) < number * MESSAGES_BETWEEN:
                assert time.monotonic() < deadline, broker.log_tail()
                assert all(thread.is_alive() for thread in threads)
                time.sleep(0.005)
            broker.kill()
            broker.start()
            broker.wait_ready(DEADLINE_S)
        load.ended.set()
        for thread in threads:
            thread.join(DEADLINE_S)
            assert not thread.is_alive(), broker.log_tail()
        load.look_again()
    assert load.redelivered_though_acknowledged == []
    assert len(load.acknowledged_pops) > MESSAGES_BETWEEN
    assert {*load.stored} <= load.delivered
    assert load.redelivered >= KILLS, "some were left for a second delivery"
