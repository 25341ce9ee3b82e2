"""Large answers are written in parts, between which other clients are served."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from reput_protocol.codes import RequestCode
from reput_protocol.commands import base as bodies
from reput_protocol.commands.base import PART_BYTES
from reput_protocol.commands.group import HeartbeatData, LockBatchBody, ProducerData, SubscriptionGroupConfig
from reput_protocol.commands.pull import QueueBoundsRequest
from reput_protocol.record.message import MessageQueue
from reput_protocol.wire.header import Value
from support.broker_bench import BenchClient, broker_bench
from support.inside import storage_of
from support.tasks import run_by_the_clock

pytestmark = pytest.mark.trio(run=run_by_the_clock)

COUNT = 1500
NAMES = tuple(f"g{number}" for number in range(COUNT))
QUEUES = [MessageQueue("T", "broker-a", number) for number in range(COUNT)]
LARGEST_ENTRY = 600

ASKED: list[tuple[RequestCode, dict[str, Value], bytes]] = [
    (RequestCode.GET_ALL_TOPIC_CONFIG, {}, b""),
    (RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, {}, b""),
    (RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"}, b""),
    (RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g0", "topic": "T"}, b""),
    (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, {"topic": "T", "group": "g0", "timestamp": "-1"}, b""),
    (RequestCode.CLONE_GROUP_OFFSET, {"srcGroup": "g0", "destGroup": "g1", "offline": "true"}, b""),
    (RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "T", "group": "g0"}, b""),
    (RequestCode.GET_ALL_PRODUCER_INFO, {}, b""),
    (RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "crowd"}, b""),
    (RequestCode.QUERY_QUEUE_BOUNDS, {}, QueueBoundsRequest(["T"]).to_json()),
    (RequestCode.LIST_GROUPS, {}, b""),
    (RequestCode.LIST_TOPICS, {}, b""),
    (RequestCode.DESCRIBE_GROUP, {"group": "g0", "topic": "T"}, b""),
    (RequestCode.LOCK_BATCH_MQ, {}, LockBatchBody("c", "g0", QUEUES).to_json()),
]


class WrittenInAStep(trio.abc.Instrument):
    """How many bytes of JSON one task wrote between two checkpoints, at most."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.largest = 0
        self._now = 0
        encode = bodies.encode_json

        def counted(value: object) -> bytes:
            text = encode(value)
            self._now += len(text)
            return text

        monkeypatch.setattr(bodies, "encode_json", counted)

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        del task
        self.largest = max(self.largest, self._now)
        self._now = 0


@pytest.mark.parametrize(("code", "ext", "body"), ASKED, ids=lambda value: getattr(value, "name", ""))
async def test_no_more_than_a_part_is_written_at_a_time(
    code: RequestCode, ext: dict[str, Value], body: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        broker, client = bench.broker, bench.client()
        await bench.create_topic("T", COUNT)
        for name in NAMES:
            storage_of(broker).tables.groups.put(SubscriptionGroupConfig(name))
        if code in (RequestCode.GET_ALL_TOPIC_CONFIG, RequestCode.LIST_TOPICS):
            for name in NAMES:
                storage_of(broker).tables.topics.create_on_send(name)
        for queue in QUEUES:
            storage_of(broker).tables.offsets.commit("g0", "T", queue.queue_id, 1)
        if code == RequestCode.GET_ALL_PRODUCER_INFO:
            await _send_for(client, *NAMES[: COUNT // 2])
        if code == RequestCode.GET_PRODUCER_CONNECTION_LIST:
            for _ in range(COUNT // 2):
                await _send_for(bench.client(), "crowd")
        written = WrittenInAStep(monkeypatch)
        trio.lowlevel.add_instrument(written)
        try:
            response = await client.ask(code, ext, body)
            await trio.lowlevel.checkpoint()
        finally:
            trio.lowlevel.remove_instrument(written)
        assert response is not None
        assert response.code == 0, response.remark
        assert 0 < written.largest <= PART_BYTES + LARGEST_ENTRY
        assert len(response.body) > 1.4 * written.largest


async def _send_for(client: BenchClient, *producer_groups: str) -> None:
    body = HeartbeatData(client.client_id, [], [ProducerData(group) for group in producer_groups]).to_json()
    response = await client.ask(RequestCode.HEART_BEAT, {}, body)
    assert response is not None
    assert response.code == 0, response.remark
