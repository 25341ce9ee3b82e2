"""A broker that changes its role: everything is closed and opened again, over the same sockets."""

from __future__ import annotations

import socket
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import structlog
import trio

from reput_broker import serve
from reput_broker.broker import Broker
from reput_broker.config.model import BrokerConfig
from reput_broker.remoting.client import RemotingClient
from reput_broker.staging.feature import StagingFeature
from reput_broker.store.base.errors import StoreError
from reput_broker.store.message_store import MessageStore
from reput_broker.tenure.core import Master, Role, Tenure
from reput_client import Message, Producer, PullConsumer
from reput_protocol.codes import RequestCode
from support.tenures import SetTenures
from support.waiting import until

SLAVE = Tenure(Role.SLAVE, 1, master=Master("127.0.0.1:9", "127.0.0.1:10"))
FIRST, SECOND = (Tenure(Role.ASYNC_MASTER, 0, epoch=epoch) for epoch in (1, 2))


def config(data_dir: Path, **values: Any) -> BrokerConfig:
    store = {"commit_log_file_size": "1MiB", "index_slots": 100, "index_entries": 400}
    return BrokerConfig(data_dir=data_dir, port=0, store=store, **values)


@pytest.mark.trio
async def test_a_change_of_role_opens_the_store_again_over_the_same_sockets(tmp_path: Path) -> None:
    tenures = SetTenures(FIRST)
    with structlog.testing.capture_logs() as logs:
        async with Broker(config(tmp_path, http_port=0), tenures=tenures) as broker:
            addresses, store = (broker.address, broker.http_address), broker.store
            async with Producer(broker.address, group="p") as producer:
                sent = await producer.send(Message("T", b"before"))
            host, _, port = broker.address.partition(":")
            async with await trio.open_tcp_stream(host, int(port)) as stream:
                tenures.set(SECOND)
                assert b"DRAINING" in await stream.receive_some()
                assert await stream.receive_some() == b"", "clients connect again and see the new role"
            await until(lambda: broker.health.ready and broker.store is not store)
            assert (broker.address, broker.http_address) == addresses
            async with httpx.AsyncClient(base_url=f"http://{broker.http_address}") as http:
                page = (await http.get("/metrics")).text
                status = (await http.get("/status")).json()
            assert 'reput_state{state="running"} 1' in page
            assert status["store"]["end_offset"] == broker.store.max_physical_offset
            async with (
                Producer(broker.address, group="p") as producer,
                PullConsumer(broker.address, group="g") as consumer,
            ):
                after = await producer.send(Message("T", b"after"), queue_id=sent.queue_id)
                found = await consumer.pull("T", queue_id=sent.queue_id, offset=0)
            assert [message.body for message in found.messages] == [b"before", b"after"]
            assert after.queue_offset == 1
    events = [entry["event"] for entry in logs]
    assert events.count("broker_ready") == 2
    assert events.index("role_changes") < events.index("tenure_ended") < events.index("broker_stopped")


@pytest.mark.trio
async def test_a_client_that_connects_during_the_change_is_served_afterwards(tmp_path: Path) -> None:
    tenures = SetTenures(FIRST)
    async with Broker(config(tmp_path), tenures=tenures) as broker:
        store = broker.store
        tenures.set(SECOND)
        await until(lambda: not broker.health.ready)
        async with Producer(broker.address, group="p") as producer:
            await producer.send(Message("T", b"x"))
        assert broker.store is not store


def serves_after(broker: Broker, store: MessageStore) -> bool:
    return broker.health.ready and broker.store is not store


@pytest.mark.trio
async def test_several_changes_and_a_stop_in_the_middle_of_one(tmp_path: Path) -> None:
    tenures = SetTenures(FIRST)
    async with Broker(config(tmp_path), tenures=tenures) as broker:
        for epoch in range(2, 6):
            store = broker.store
            tenures.set(Tenure(Role.ASYNC_MASTER, 0, epoch=epoch))
            await until(partial(serves_after, broker, store))
        tenures.set(Tenure(Role.ASYNC_MASTER, 0, epoch=6))
        await until(lambda: not broker.health.ready)
    assert not broker.store.is_open
    async with Broker(config(tmp_path)) as broker:
        assert broker.health.ready, "the directory was released in order"


@pytest.mark.trio
async def test_a_stop_during_recovery_serves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def stopped_meanwhile(_staging: StagingFeature) -> None:
        broker.stop()
        await trio.sleep_forever()

    monkeypatch.setattr(StagingFeature, "recover", stopped_meanwhile)
    monkeypatch.setattr(serve, "gc", SimpleNamespace(collect=lambda: None, freeze=lambda: None))
    broker, ready = Broker(config(tmp_path)), list[Broker]()
    listens: list[int] = []

    async def stopped() -> None:
        await trio.testing.wait_all_tasks_blocked(0.05)
        listens.extend(s.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) for s in broker._base.listeners.values())

    monkeypatch.setattr(broker, "stopped", stopped)
    with structlog.testing.capture_logs() as logs:
        await serve._serve(broker, None, ready.append)
    assert (listens, ready) == ([0], [])
    events = [entry["event"] for entry in logs]
    assert "broker_ready" not in events
    assert not broker.store.is_open


@pytest.mark.trio
async def test_a_store_that_cannot_be_opened_in_the_next_role_ends_the_broker(tmp_path: Path) -> None:
    tenures = SetTenures(FIRST)
    with pytest.RaisesGroup(StoreError, flatten_subgroups=True):
        async with Broker(config(tmp_path), tenures=tenures) as broker:
            async with Producer(broker.address, group="p") as producer:
                await producer.send(Message("T", b"x"))
            await until(broker.store.dispatch_is_idle)
            (tmp_path / "checkpoint").write_bytes(b"no checkpoint")
            (tmp_path / "commitlog" / "foreign").mkdir()
            tenures.set(SECOND)
            await trio.sleep(30)


@pytest.mark.trio
async def test_a_master_becomes_a_slave_that_refuses_and_a_master_again(tmp_path: Path) -> None:
    tenures = SetTenures(FIRST)
    async with Broker(config(tmp_path, http_port=0), tenures=tenures) as broker:
        async with Producer(broker.address, group="p") as producer:
            sent = await producer.send(Message("T", b"before", delay_s=0.1))
            with trio.fail_after(30):
                while not broker.store.max_offset_in_queue("T", sent.queue_id):
                    await trio.sleep(0.01)
        store = broker.store
        tenures.set(SLAVE)
        await until(lambda: broker.health.ready and broker.store is not store)
        async with httpx.AsyncClient(base_url=f"http://{broker.http_address}") as http:
            assert (await http.get("/metrics")).status_code == 200
            assert (await http.get("/status")).json()["master"] == "127.0.0.1:9"
        client = RemotingClient(broker.address)
        answer = await client.call(RequestCode.SEND_MESSAGE_V2, {}, timeout_s=10.0)
        assert (answer.remark or "").startswith("NOT_MASTER")
        client.close()
        tenures.set(SECOND)
        store = broker.store
        await until(lambda: broker.health.ready and broker.store is not store)
        async with Producer(broker.address, group="p") as producer, PullConsumer(broker.address, group="g") as consumer:
            await producer.send(Message("T", b"after"), queue_id=sent.queue_id)
            found = await consumer.pull("T", queue_id=sent.queue_id, offset=0)
        assert [message.body for message in found.messages] == [b"before", b"after"], (
            "what was delivered before is not delivered again"
        )
