"""Retention through the running broker: what expires goes, what is read stays, a disk too full refuses and resumes.

The broker runs in this process with small files, and with clocks and a disk that are the test's.
"""

from __future__ import annotations

import json
import random
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from reput_broker import Broker, BrokerConfig
from reput_broker.observe.health import BrokerState
from reput_broker.store.log.mapped_file import MappedFile
from reput_client import Message, Producer, PullConsumer, PullStatus, blocking
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.errors import ReputError, StoreUnavailable
from reput_protocol.record.layout import RECORD_BYTES_MIN
from reput_protocol.record.put_block import encode_put_block
from reput_protocol.wire.header import HeaderType, Value
from support.broker_process import BrokerProcess
from support.raw_client import RawClient, in_letters
from support.retention import RESERVED_MS, FakeMachine
from support.waiting import until

pytestmark = pytest.mark.process

FILE_SIZE = 65536
SMALL: dict[str, Any] = {
    "commit_log_file_size": FILE_SIZE,
    "consume_queue_entries": 16,
    "clean_delay": "0s",
    "clean_interval": "100ms",
    "delete_files_interval": "1ms",
    "consume_queue_flush_interval": "20ms",
}


def config_of(data_dir: Path, **store: Any) -> BrokerConfig:
    return BrokerConfig(data_dir=data_dir, port=0, http_port=0, store={**SMALL, **store})


def log_files(data_dir: Path) -> list[int]:
    return sorted(int(path.name) for path in (data_dir / "commitlog").iterdir())


async def send(broker: Broker, count: int, size: int = 4000) -> None:
    async with Producer(broker.address, group="p") as producer:
        for number in range(count):
            await producer.send(Message("t", b"%06d" % number + bytes(size)), queue_id=0)


async def read_page(broker: Broker, path: str) -> str:
    def read() -> str:
        with urllib.request.urlopen(f"http://{broker.http_address}{path}", timeout=5.0) as answer:
            text: str = answer.read().decode()
            return text

    return await trio.to_thread.run_sync(read)


async def series(broker: Broker) -> dict[tuple[str, ...], float]:
    page = await read_page(broker, "/metrics")
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


@pytest.mark.trio
async def test_expired_files_go_and_one_that_is_being_read_stays_until_it_has_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = FakeMachine()
    data_dir = tmp_path / "store"
    async with Broker(config_of(data_dir), surroundings=machine.surroundings()) as broker:
        await send(broker, 100)
    machine.age(data_dir)
    files = log_files(data_dir)
    assert len(files) >= 6

    reading, go_on = threading.Event(), threading.Event()
    real = MappedFile.read_held

    def slow(self: MappedFile, position: int, size: int) -> bytes:
        is_look_at_a_head = size <= RECORD_BYTES_MIN  # so is asked how old the oldest message is
        if self.base_offset == 0 and not is_look_at_a_head and not go_on.is_set():
            reading.set()
            assert go_on.wait(20)
        return real(self, position, size)

    monkeypatch.setattr(MappedFile, "read_held", slow)
    # Started again, so that old messages count as not in memory and are read in a thread.
    async with Broker(config_of(data_dir), surroundings=machine.surroundings()) as broker:
        store = broker.store
        await until(lambda: machine.looks)
        assert log_files(data_dir) == files, "nothing has expired"
        results = []

        async def read_slowly() -> None:
            async with PullConsumer(broker.address, group="slow") as consumer:
                results.append(await consumer.pull("t", queue_id=0, offset=0, max_messages=4))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_slowly)
            await until(reading.is_set)
            machine.hour = 4
            machine.now_ms += RESERVED_MS
            await until(lambda: store.min_physical_offset > 0)
            await until(lambda: store.min_offset_in_queue("t", 0) > 0)
            assert log_files(data_dir) == files, "held, and nothing behind it may go first"
            async with PullConsumer(broker.address, group="other") as consumer:
                result = await consumer.pull("t", queue_id=0, offset=0)
                low = result.min_offset
                assert low > 0
                assert (result.status, result.next_begin_offset) == (PullStatus.OFFSET_ILLEGAL, low)
                result = await consumer.pull("t", queue_id=0, offset=low)
                assert bytes(result.messages[0].body[:6]) == b"%06d" % low
            go_on.set()
        assert [bytes(message.body[:6]) for message in results[0].messages] == [
            b"000000", b"000001", b"000002", b"000003",
        ]  # fmt: skip
        await until(lambda: log_files(data_dir) == files[-1:])
        await until(lambda: broker.counters.segments_deleted["consumequeue", "time"] >= 3)
        assert len(list((data_dir / "consumequeue" / "t" / "0").iterdir())) < 4
        found = await series(broker)
        assert found["reput_segments_deleted_total", "commitlog", "time"] == len(files) - 1
        assert found["reput_segments_deleted_total", "commitlog", "disk"] == 0
        assert found["reput_segments_deleted_total", "consumequeue", "time"] >= 3
        assert found["reput_segments_deleted_bytes_total", "commitlog"] == (len(files) - 1) * FILE_SIZE
        assert found["reput_storage_start_offset_bytes",] == files[-1]
        low = store.min_offset_in_queue("t", 0)
        await send(broker, 1)
        async with PullConsumer(broker.address, group="other") as consumer:
            result = await consumer.pull("t", queue_id=0, offset=100)
            assert result.status is PullStatus.FOUND
    async with Broker(config_of(data_dir), surroundings=machine.surroundings()) as broker:
        assert broker.store.min_offset_in_queue("t", 0) == low
        assert broker.store.max_offset_in_queue("t", 0) == 101


def put_native(address: str) -> tuple[int, str]:
    block = encode_put_block([Message("t", b"x")], "t", 0, 1_700_000_000_000)
    ext: dict[str, Value] = {"topic": "t", "queueId": 0, "count": 1, "ack": "page_cache"}
    with RawClient(address) as client:
        header, _ = client.request(RequestCode.PUT_MESSAGE, ext, bytes(block))
    return header.code, header.remark or ""


def send_like_rocketmq(address: str, header_type: int, code: int) -> tuple[int, str]:
    ext = in_letters("t", m=str(code == RequestCode.SEND_BATCH_MESSAGE).lower())
    with RawClient(address, header_type) as client:
        header, _ = client.request(code, ext, b"x")
    return header.code, header.remark or ""


@pytest.mark.trio
async def test_a_disk_too_full_refuses_puts_serves_pulls_and_resumes_by_itself(tmp_path: Path) -> None:
    machine = FakeMachine()
    data_dir = tmp_path / "store"
    config = config_of(data_dir, clean_file_forcibly=False)
    async with Broker(config, surroundings=machine.surroundings()) as broker:
        await send(broker, 40)
        files = log_files(data_dir)
        machine.used = 0.91
        await until(lambda: not broker.store.is_writable)
        async with Producer(broker.address, group="p") as producer:
            for ack in ("page_cache", "flushed"):
                with pytest.raises(StoreUnavailable, match=r"DISK_FULL.*91%.*disk_warning_ratio"):
                    await producer.send(Message("t", b"x"), ack=ack)
            with pytest.raises(ReputError, match="DISK_FULL"):
                await producer.send_batch([Message("t", b"x")] * 3)
        for header_type in (HeaderType.JSON, HeaderType.BINARY):
            code, remark = await trio.to_thread.run_sync(
                send_like_rocketmq, broker.address, header_type, RequestCode.SEND_MESSAGE_V2
            )
            assert code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert remark.startswith("DISK_FULL")
        code, remark = await trio.to_thread.run_sync(put_native, broker.address)
        assert (code, remark.split(":")[0]) == (int(ResponseCode.SERVICE_NOT_AVAILABLE), "DISK_FULL")
        async with PullConsumer(broker.address, group="g") as consumer:
            offset = 0
            while offset < 40:
                result = await consumer.pull("t", queue_id=0, offset=offset, max_messages=1000)
                assert bytes(result.messages[0].body[:6]) == b"%06d" % offset
                offset += len(result.messages)
            await consumer.commit("t", 0, 40)
            assert await consumer.committed("t", 0) == 40
        found = await series(broker)
        assert found["reput_disk_watermark_state", "refuse"] == 1
        assert found["reput_disk_watermark_state", "ok"] == 0
        assert found["reput_messages_rejected_total", "disk_full"] >= 6
        checks = json.loads(await read_page(broker, "/readyz?verbose"))
        assert checks["ready"]
        assert "91%" in checks["checks"]["disk_space"]["detail"]
        assert broker.health.state is BrokerState.RUNNING
        assert log_files(data_dir)[: len(files)] == files, "clean_file_forcibly is off"

        machine.used = 0.86
        looks = len(machine.looks)
        await until(lambda: len(machine.looks) > looks + 4)
        assert (await trio.to_thread.run_sync(put_native, broker.address))[0] != 0, "not below the limit yet"
        machine.used = 0.80
        await until(lambda: broker.store.is_writable)
        await send(broker, 1)
        assert (await series(broker))["reput_disk_watermark_state", "clean"] == 1
        machine.used = 0.5
        await until(lambda: broker.store.max_offset_in_queue("t", 0) == 41)


@pytest.mark.trio
async def test_a_disk_too_full_loses_its_oldest_files_until_it_is_not(tmp_path: Path) -> None:
    data_dir = tmp_path / "store"

    class Disk(FakeMachine):
        def disk_usage(self, path: Path) -> float:
            """Each file of the log takes 2 %."""
            self.looks.append(path)
            return self.used + 0.02 * len(log_files(data_dir)) if self.used > 0.6 else self.used

    machine = Disk()
    async with Broker(config_of(data_dir), surroundings=machine.surroundings()) as broker:
        await send(broker, 150)
        files = log_files(data_dir)
        assert len(files) > 8
        machine.used = 0.75
        await until(lambda: broker.store.min_physical_offset > 0)
        await until(lambda: broker.store.is_writable)
        await until(lambda: broker.store.min_offset_in_queue("t", 0) > 0)
        left = log_files(data_dir)
        assert left == files[-5:], "no more than had to go"
        found = await series(broker)
        assert found["reput_segments_deleted_total", "commitlog", "disk"] == len(files) - 5
        await send(broker, 1)


@pytest.mark.trio
async def test_files_are_deleted_by_hand_at_any_hour(tmp_path: Path) -> None:
    machine = FakeMachine()
    data_dir = tmp_path / "store"
    config = config_of(data_dir, clean_delay="1h")
    async with Broker(config, surroundings=machine.surroundings()) as broker:
        await send(broker, 60)
        await until(lambda: broker.store._cleaners.deletable_end() == broker.store.max_physical_offset)
        machine.age(data_dir)
        machine.now_ms += 2 * RESERVED_MS
        machine.now_ms = max(machine.now_ms, (time.time_ns() // 1_000_000) + 2 * RESERVED_MS)

        def delete() -> int:
            with RawClient(broker.address, HeaderType.JSON) as client:
                return client.request(RequestCode.DELETE_EXPIRED_COMMITLOG)[0].code

        assert await trio.to_thread.run_sync(delete) == 0
        # The files after the current one were created ahead.
        await until(lambda: log_files(data_dir)[0] + FILE_SIZE >= broker.store.max_physical_offset)
        await until(lambda: broker.store.min_offset_in_queue("t", 0) > 0)


def test_killed_repeatedly_while_files_expire_it_opens_and_continues(tmp_path: Path) -> None:
    rng = random.Random(4)
    environment = {
        "REPUT_STORE__COMMIT_LOG_FILE_SIZE": "64KiB",
        "REPUT_STORE__CONSUME_QUEUE_ENTRIES": "16",
        "REPUT_STORE__FILE_RESERVED_TIME": "1s",
        "REPUT_STORE__DELETE_WHEN": ";".join(map(str, range(24))),
        "REPUT_STORE__DELETE_FILES_BATCH": "1000",
        "REPUT_STORE__DELETE_FILES_INTERVAL": "0s",
        "REPUT_STORE__CLEAN_INTERVAL": "100ms",
        "REPUT_STORE__CLEAN_DELAY": "0s",
        "REPUT_STORE__CONSUME_QUEUE_FLUSH_INTERVAL": "20ms",
    }
    process = BrokerProcess(tmp_path / "store", environment=environment)
    sent = 0
    starts: list[int] = []
    for _ in range(4):
        process.start()
        process.wait_ready()
        with blocking.PullConsumer(process.address, group="g") as consumer:
            result = consumer.pull("t", queue_id=0, offset=0, max_messages=1000, wait_s=0.0) if sent else None
            if result is not None:
                starts.append(result.min_offset)
                assert result.max_offset == sent, "no offset is given twice"
                offset = result.min_offset
                while offset < sent:
                    result = consumer.pull("t", queue_id=0, offset=offset, max_messages=100, wait_s=0.0)
                    if result.status is PullStatus.FOUND:
                        for message in result.messages:
                            assert bytes(message.body[:6]) == b"%06d" % message.queue_offset
                    assert result.next_begin_offset > offset
                    offset = result.next_begin_offset
        end = time.monotonic() + 1.3 + rng.random() * 0.4
        with blocking.Producer(process.address, group="p") as producer:
            while time.monotonic() < end:
                receipt = producer.send(Message("t", b"%06d" % sent + bytes(6000)), queue_id=0)
                assert receipt.queue_offset == sent
                sent += 1
        process.kill()
    assert starts == sorted(starts)
    assert starts[-1] > 0, "some have expired"
    process.start()
    process.wait_ready()
    assert process.terminate() == 0
