"""A slave next to its master: the tables it takes over, what it serves, and what it has when it is promoted."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from reput_broker.broker import Broker
from reput_broker.config.model import BrokerConfig
from reput_broker.ha import client, slave_synchronize
from reput_broker.remoting.client import RemotingClient
from reput_broker.remoting.request import ClientAnswer
from reput_broker.store.base.checkpoint import StoreCheckpoint
from reput_broker.tenure.core import Master, Role, Tenure
from reput_client import Admin, Message, Producer, PullConsumer, TransactionProducer, TransactionState
from reput_protocol.codes import RequestCode
from reput_protocol.commands.topic import RouteHeader, TopicRoute
from reput_protocol.wire.header import HeaderType
from support.broker_process import BrokerProcess, free_port
from support.dead_letters import send_and_give_up
from support.tenures import SetTenures
from support.waiting import until

STORE = {"commit_log_file_size": "64KiB", "index_slots": 100, "index_entries": 400}
MESSAGES = 30


@dataclass
class Pair:
    master: Broker
    slave: Broker
    tenures: SetTenures
    """The slave's."""

    async def caught_up(self) -> None:
        await until(
            lambda: (
                self.slave.health.ready and self.slave.store.dispatched_offset >= self.master.store.max_physical_offset
            )
        )

    async def synchronized(self) -> None:
        """Wait until the slave has taken over everything that the master has now."""
        await self.caught_up()
        await trio.sleep(1.5)

    async def promote(self) -> None:
        store = self.slave.store
        self.tenures.set(Tenure(Role.ASYNC_MASTER, 0))
        await until(lambda: self.slave.health.ready and self.slave.store is not store)


@asynccontextmanager
async def pair(root: Path, *, reads: bool = True, **options: Any) -> AsyncIterator[Pair]:
    ha = {"slave_read_enabled": reads}
    common = {"port": 0, "http_port": 0, "store": STORE, "ha": ha, **options}
    async with Broker(BrokerConfig(data_dir=root / "master", ha_port=0, **common)) as master:
        tenures = SetTenures(Tenure(Role.SLAVE, 1, master=Master(master.address, "")))
        async with Broker(BrokerConfig(data_dir=root / "slave", **common), tenures=tenures) as slave:
            yield Pair(master, slave, tenures)


async def ask(broker: Broker, code: int, ext: dict[str, Any] | None = None) -> ClientAnswer:
    client = RemotingClient(broker.address)
    try:
        return await client.call(code, ext or {}, timeout_s=10.0)
    finally:
        client.close()


def pull(offset: int, *, wait_ms: int = 0, queue_id: int = 0) -> dict[str, Any]:
    return {
        "consumerGroup": "g", "topic": "T", "queueId": queue_id, "queueOffset": offset, "maxMsgNums": 32,
        "sysFlag": 6, "commitOffset": 0, "suspendTimeoutMillis": wait_ms, "subscription": "*", "subVersion": 0,
    }  # fmt: skip


@pytest.mark.trio
async def test_a_promoted_slave_has_offsets_topics_groups_and_delayed_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slave_synchronize, "_TIMER_S", 0.2)
    async with pair(tmp_path) as both:
        async with Admin(both.master.address) as admin:
            await admin.create_topic("T", queues=2)
        async with (
            Producer(both.master.address, group="p") as producer,
            PullConsumer(both.master.address, group="g") as consumer,
        ):
            for number in range(MESSAGES):
                await producer.send(Message("T", b"%d" % number), queue_id=0)
            await producer.send(Message("T", b"delivered by the old master", delay_level=1), queue_id=1)
            await producer.send(Message("T", b"timed by the old master", delay_s=0.1), queue_id=1)
            await until(lambda: both.master.store.max_offset_in_queue("T", 1) == 2)
            await producer.send(Message("T", b"still waits", delay_s=3.0), queue_id=1)
            await producer.send(Message("T", b"waits by level", delay_level=2), queue_id=1)
            await consumer.commit("T", 0, 20)
        await both.synchronized()
        timer = json.loads((tmp_path / "slave" / "config" / "masterTimer.json").read_bytes())
        assert timer["queueOffset"] == 2
        assert timer["replayFrom"] > 0
        await both.promote()
        async with (
            Producer(both.slave.address, group="p") as producer,
            PullConsumer(both.slave.address, group="g") as consumer,
        ):
            assert await consumer.committed("T", 0) == 20
            await producer.send(Message("T", b"after"), queue_id=0)
            found = await consumer.pull("T", queue_id=0, offset=20)
            assert [message.body for message in found.messages] == [
                *(b"%d" % number for number in range(20, MESSAGES)),
                b"after",
            ]
            await until(lambda: both.slave.store.max_offset_in_queue("T", 1) == 4)
            await trio.sleep(0.5)
            found = await consumer.pull("T", queue_id=1, offset=0)
            assert sorted(message.body for message in found.messages) == [
                b"delivered by the old master",
                b"still waits",
                b"timed by the old master",
                b"waits by level",
            ], "each once"


@pytest.mark.trio
async def test_a_promoted_slave_knows_which_dead_letters_were_replayed(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:
        give_up = partial(send_and_give_up, both.master.address, "billing", "orders", [b"1", b"2", b"3"])
        await trio.to_thread.run_sync(give_up)
        async with Admin(both.master.address) as admin:
            (sent,) = await admin.replay_dead_letters("billing", [1])
        await both.synchronized()
        await both.promote()
        async with Admin(both.slave.address) as admin:
            assert (await admin.replays("billing", 0, 3)).replays == [sent.replay]
            letters = await admin.replay_dead_letters("billing", range(3))
            assert [letter.outcome for letter in letters] == ["SENT", "SENT_BEFORE", "SENT"]
            found = await admin.fetch_messages("orders", 0, 3, 9)
            assert sorted(message.body for message in found.messages) == [b"1", b"2", b"3"]


@pytest.mark.trio
async def test_a_slave_serves_reads_and_sends_what_it_lacks_to_its_master(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:
        async with Producer(both.master.address, group="p") as producer:
            for number in range(MESSAGES):
                await producer.send(Message("T", b"%d" % number), queue_id=0)
        await both.synchronized()
        answer = await ask(both.slave, RequestCode.PULL_MESSAGE, pull(0))
        assert answer.code == 0
        assert len(answer.body) > 0
        assert answer.ext["suggestWhichBrokerId"] == "0", "it is near the end, where the master is as good"
        began = trio.current_time()
        answer = await ask(both.slave, RequestCode.PULL_MESSAGE, pull(MESSAGES, wait_ms=10_000))
        assert (answer.code, answer.ext["suggestWhichBrokerId"]) == (20, "0")
        assert trio.current_time() - began < 8, "it does not hold what its master can answer"
        answer = await ask(both.slave, RequestCode.PULL_MESSAGE, pull(MESSAGES + 5))
        assert (answer.code, answer.ext["nextBeginOffset"]) == (20, str(MESSAGES + 5)), "never back"
        both.slave.config.ha.__dict__["slave_read_enabled"] = False
        assert (await ask(both.slave, RequestCode.PULL_MESSAGE, pull(0))).code == 2
        query = {"consumerGroup": "g", "topic": "T", "queueId": 0}
        assert (await ask(both.slave, RequestCode.QUERY_CONSUMER_OFFSET, query)).code in (0, 22)


@pytest.mark.trio
async def test_both_show_the_state_of_replication(tmp_path: Path) -> None:
    async with pair(tmp_path) as both:
        async with Producer(both.master.address, group="p") as producer:
            await producer.send(Message("T", b"x"))
        await both.synchronized()
        end = both.master.store.max_physical_offset
        status = json.loads((await ask(both.master, RequestCode.GET_BROKER_HA_STATUS)).body)
        assert (status["master"], status["masterCommitLogMaxOffset"], status["inSyncSlaveNums"]) == (True, end, 1)
        (connection,) = status["haConnectionInfo"]
        assert (connection["slaveAckOffset"], connection["diff"], connection["inSync"]) == (end, 0, True)
        for broker, written in ((both.master, 0), (both.slave, 7)):
            answer = await ask(broker, RequestCode.RESET_MASTER_FLUSH_OFFSET, {"masterFlushOffset": 7})
            assert answer.code == 0
            broker.store.write_checkpoint()
            checkpoint = StoreCheckpoint(broker.config.data_dir / "checkpoint")
            checkpoint.load()
            assert checkpoint.master_flushed_offset == written
        status = json.loads((await ask(both.slave, RequestCode.GET_BROKER_HA_STATUS)).body)
        assert not status["master"]
        client = status["haClientRuntimeInfo"]
        assert (client["masterAddr"], client["maxOffset"]) == (both.master.address, end)
        assert client["activated"]
        assert client["lastReadTimestamp"] > 0
        async with httpx.AsyncClient() as http:
            pages = [
                (await http.get(f"http://{broker.http_address}/metrics")).text for broker in (both.master, both.slave)
            ]
            slave_status = (await http.get(f"http://{both.slave.http_address}/status")).json()
            master_status = (await http.get(f"http://{both.master.http_address}/status")).json()
        for series in (
            'reput_role{role="ASYNC_MASTER"} 1',
            "reput_epoch 1",
            "reput_replication_slaves 1",
            "reput_replication_copies_in_sync 2",
            f"reput_replicated_offset_bytes {end}",
            'reput_replication_lag_bytes{slave="0"} 0',
            'reput_replication_lag_seconds{slave="0"} 0.0',
        ):
            assert series in pages[0], series
        for series in (
            'reput_role{role="SLAVE"} 1',
            "reput_replica_has_master 1",
            "reput_replica_connected 1",
            "reput_replica_lag_bytes 0",
            "reput_replica_lag_seconds 0.0",
            "reput_replica_tables_age_seconds",
        ):
            assert series in pages[1], series
        assert all(broker.health.checks["replication"].ok for broker in (both.master, both.slave))
        assert slave_status["role"] == "SLAVE"
        assert slave_status["master"] == both.master.address
        assert master_status["slaves"][0]["lag_bytes"] == 0
        figures = json.loads((await ask(both.slave, RequestCode.GET_BROKER_RUNTIME_INFO)).body)["table"]
        assert (figures["brokerRole"], figures["brokerId"]) == ("SLAVE", "1")


@pytest.mark.trio
async def test_a_promoted_slave_ends_the_transactions_that_are_open_and_no_other(tmp_path: Path) -> None:
    ended = {b"committed": TransactionState.COMMIT, b"rolled back": TransactionState.ROLLBACK}

    async def local(message: Message) -> TransactionState:
        return ended.get(bytes(message.body), TransactionState.UNKNOWN)

    async def not_known_yet(_message: object) -> TransactionState:
        return TransactionState.UNKNOWN

    async def committed(_message: object) -> TransactionState:
        return TransactionState.COMMIT

    soon = {"timeout": "50ms", "check_interval": "100ms", "op_interval": "50ms"}
    async with pair(tmp_path, transactions=soon) as both:
        async with TransactionProducer(both.master.address, group="p", check=not_known_yet) as producer:
            for body in (*ended, b"open"):
                await producer.send_in_transaction(Message("T", body), local, queue_id=0)
            await until(lambda: both.master.store.max_offset_in_queue("T", 0) == 1)
            await both.synchronized()
        await both.promote()
        async with (
            TransactionProducer(both.slave.address, group="p", check=committed),
            PullConsumer(both.slave.address, group="g") as consumer,
        ):
            await until(lambda: both.slave.store.max_offset_in_queue("T", 0) == 2)
            await trio.sleep(0.5)
            found = await consumer.pull("T", queue_id=0, offset=0)
            assert [message.body for message in found.messages] == [b"committed", b"open"]


async def routed(broker: Broker) -> dict[int, str]:
    answer = await ask(broker, RequestCode.GET_ROUTEINFO_BY_TOPIC, dict(RouteHeader("T").to_ext(HeaderType.JSON)))
    return {} if answer.code else dict(TopicRoute.from_json(answer.body).broker_datas[0].broker_addrs)


@pytest.mark.process
@pytest.mark.trio
async def test_a_client_that_starts_after_the_master_was_killed_reads_from_the_slave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_LOST_S", 0.2)
    environment = {"REPUT_HA_PORT": str(free_port()), "REPUT_STORE__COMMIT_LOG_FILE_SIZE": "64KiB"}
    with BrokerProcess(tmp_path / "master", environment=environment) as master:
        config = BrokerConfig(
            data_dir=tmp_path / "slave",
            broker_id=1,
            port=0,
            http_port=0,
            store=STORE,
            ha={"role": "SLAVE", "master": master.address, "slave_read_enabled": True},
        )
        async with Broker(config) as slave:
            async with Producer(master.address) as producer:
                await producer.send(Message("T", b"copied"), queue_id=0)
            await until(lambda: slave.health.ready and slave.store.max_offset_in_queue("T", 0) == 1)
            with trio.fail_after(20):
                while await routed(slave) != {0: master.address, 1: slave.address}:
                    await trio.sleep(0.05)
                master.kill()
                while await routed(slave) != {1: slave.address}:
                    await trio.sleep(0.05)
            async with PullConsumer(slave.address, group="g") as consumer:
                result = await consumer.pull("T", 0, 0)
            assert [bytes(message.body) for message in result.messages] == [b"copied"]
