"""A master and its slave in one event loop: equal logs, whatever ends in between."""

from __future__ import annotations

import shutil
import socket
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio

from reput_broker.broker import Broker
from reput_broker.config.model import BrokerConfig
from reput_broker.config.sections import TlsConfig
from reput_broker.ha import client as ha_client
from reput_broker.ha.epochs import Epoch, decode_epochs
from reput_broker.ha.frames import HEADER, REPORT, Hello, encode_hello
from reput_broker.remoting.client import RemotingClient
from reput_broker.remoting.client import dial as real_dial
from reput_broker.remoting.request import ClientAnswer
from reput_broker.store.message_writer import MessageWriter
from reput_client import AckNotReached, Message, Producer, StoreUnavailable
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.record.record import Record, encode_record
from support.inside import status_of
from support.stores import killed
from support.waiting import until

STORE = {"commit_log_file_size": "64KiB", "index_slots": 100, "index_entries": 400}


def master_config(
    root: Path, *, port: int = 0, ha_port: int = 0, flush: str = "sync", pool: bool = False, **ha: Any
) -> BrokerConfig:
    store = {**STORE, "flush": flush, "transient_store_pool": pool}
    return BrokerConfig(data_dir=root, port=port, ha_port=ha_port, store=store, ha=ha)


def slave_config(
    root: Path, master: Broker, *, flush: str = "sync", cluster: str = "DefaultCluster", **ha: Any
) -> BrokerConfig:
    return BrokerConfig(
        cluster=cluster,
        data_dir=root,
        port=0,
        broker_id=1,
        store={**STORE, "flush": flush},
        ha={"role": "SLAVE", "master": master.address, **ha},
    )


def port_of(address: str | None) -> int:
    assert address is not None
    return int(address.rpartition(":")[2])


async def caught_up(master: Broker, slave: Broker) -> None:
    await until(lambda: slave.health.ready and slave.store.max_physical_offset == master.store.max_physical_offset)


async def load(broker: Broker, count: int, start: int = 0, **options: Any) -> None:
    async with Producer(broker.address, group="p", **options) as producer:
        for number in range(start, start + count):
            await producer.send(Message("T", b"%05d" % number + bytes(1000)), queue_id=number % 4)


def logs(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((root / "commitlog").iterdir())}


def assert_same_logs(one: Path, other: Path) -> None:
    mine, theirs = logs(one), logs(other)
    assert mine.keys() == theirs.keys()
    assert all(mine[name] == theirs[name] for name in mine)


@pytest.mark.trio
@pytest.mark.parametrize(("flush", "pool"), [("sync", False), ("async", False), ("sync", True), ("async", True)])
async def test_a_slave_has_the_same_log_and_serves_it_when_promoted(tmp_path: Path, flush: str, pool: bool) -> None:
    """Also if the master commits buffers: only what is committed is sent."""
    one, other = tmp_path / "1", tmp_path / "2"
    async with Broker(master_config(one, flush=flush, pool=pool)) as master:
        await load(master, 100)
        async with Broker(slave_config(other, master, flush=flush)) as slave:
            await caught_up(master, slave)
            await load(master, 100, 100, ack="replicated")
            assert slave.store.max_physical_offset == master.store.max_physical_offset
            await until(lambda: slave.store.dispatched_offset == master.store.max_physical_offset)
            for queue in range(4):
                assert slave.store.max_offset_in_queue("T", queue) == 50
    assert_same_logs(one, other)
    async with Broker(master_config(other, flush=flush)) as promoted:
        await load(promoted, 4, 200)
        assert promoted.store.max_offset_in_queue("T", 0) == 51


@pytest.mark.trio
async def test_a_connection_that_is_reset_before_it_is_accepted_ends_nothing(tmp_path: Path) -> None:
    async with Broker(master_config(tmp_path / "1")) as master:
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", port_of(master.ha_address))) as gone:
                gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        async with Broker(slave_config(tmp_path / "2", master)) as slave:
            await load(master, 1)
            await caught_up(master, slave)


@pytest.mark.trio
async def test_the_slave_restarts_and_the_master_restarts(tmp_path: Path) -> None:
    one, other = tmp_path / "1", tmp_path / "2"
    async with Broker(master_config(one)) as master:
        port, ha_port = port_of(master.address), port_of(master.ha_address)
        config = slave_config(other, master)
        async with Broker(config) as slave:
            await load(master, 50)
            await caught_up(master, slave)
        await load(master, 100, 50)
        async with Broker(config) as slave:
            await caught_up(master, slave)
            await load(master, 10, 150)
            await caught_up(master, slave)
    async with Broker(config) as slave, Broker(master_config(one, port=port, ha_port=ha_port)) as master:
        await load(master, 50, 160)
        await caught_up(master, slave)
    assert_same_logs(one, other)
    assert (one / "epochFileCheckpoint").read_text() == (other / "epochFileCheckpoint").read_text()


@pytest.mark.trio
async def test_what_only_the_slave_has_is_truncated_into_a_file(tmp_path: Path) -> None:
    """The master lost the unsynced end of its log, and has written something else there."""
    one, other = tmp_path / "1", tmp_path / "2"
    async with Broker(master_config(one)) as master:
        port, ha_port = port_of(master.address), port_of(master.ha_address)
        config = slave_config(other, master)
        async with Broker(config) as slave:
            await load(master, 20)
            await until(master.store.dispatch_is_idle)
            end = master.store.max_physical_offset
            synced = killed(master.store, tmp_path / "synced").data_dir
            await load(master, 3, 20)
            await caught_up(master, slave)
            lost_end = master.store.max_physical_offset
    shutil.rmtree(one)
    synced.rename(one)
    async with Broker(master_config(one, port=port, ha_port=ha_port)) as master:
        await load(master, 30, 20)
        async with Broker(config) as slave:
            await caught_up(master, slave)
            await until(lambda: slave.store.dispatched_offset == master.store.max_physical_offset)
            assert sum(slave.store.max_offset_in_queue("T", queue) for queue in range(4)) == 50
    assert_same_logs(one, other)
    assert [path.name for path in (other / "cut").iterdir()] == [f"{end}-{lost_end}.log"]


@pytest.mark.trio
@pytest.mark.parametrize("is_elected", [True, False])
async def test_a_returning_master_of_a_group_whose_next_one_had_nothing_yet(
    tmp_path: Path, *, is_elected: bool
) -> None:
    """Everything goes into a file. Without an election, the other may as well be one that has lost its disk."""
    one, other = tmp_path / "1", tmp_path / "2"
    async with Broker(master_config(one)) as master:
        async with Broker(slave_config(other, master)) as slave:
            await until(lambda: "copies the log" in str(status_of(slave, "replication")))
        await load(master, 5)
    kept = logs(one)
    async with Broker(master_config(other)) as master:
        if is_elected:
            master.store.confirm_offset = 0
        async with Broker(slave_config(one, master)) as slave:
            if not is_elected:
                await until(lambda: "it has no record of this log" in str(status_of(slave, "replication")))
                assert logs(one) == kept
                return
            await caught_up(master, slave)
            await load(master, 3)
            await caught_up(master, slave)
    assert_same_logs(one, other)
    (path,) = (one / "cut").iterdir()
    assert kept[f"{0:020d}"].startswith(path.read_bytes())
    assert path.stat().st_size > 5000


@pytest.mark.trio
async def test_an_epoch_is_adopted_before_its_first_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a kill after the report of that byte, and before the adoption, would have it truncated again."""
    one, other = tmp_path / "1", tmp_path / "2"
    for start in (0, 5, 10):
        async with Broker(master_config(one)) as master:
            await load(master, 5, start)
    append = MessageWriter.append_replicated
    faults: list[Epoch] = []
    ends: list[int] = []

    def checked_append(self: MessageWriter, offset: int, data: memoryview, *, stored_ms: int) -> None:
        ends.append(offset + len(data))
        adopted = decode_epochs((other / "epochFileCheckpoint").read_text(), other)
        written = decode_epochs((one / "epochFileCheckpoint").read_text(), one)
        faults.extend({epoch for epoch in written if epoch.start_offset < ends[-1]} - set(adopted))
        append(self, offset, data, stored_ms=stored_ms)

    monkeypatch.setattr(MessageWriter, "append_replicated", checked_append)
    async with Broker(master_config(one)) as master, Broker(slave_config(other, master)) as slave:
        await caught_up(master, slave)
        await load(master, 1, 15, ack="replicated")
    assert ends
    assert not faults


@pytest.mark.trio
async def test_a_master_that_does_not_serve_its_log_is_told_so(tmp_path: Path) -> None:
    config = BrokerConfig(data_dir=tmp_path / "1", port=0, store=STORE)
    async with Broker(config) as master, Broker(slave_config(tmp_path / "2", master)) as slave:
        await until(lambda: "set its ha_port" in str(status_of(slave, "replication")))


@pytest.mark.trio
async def test_replicated_without_a_slave(tmp_path: Path) -> None:
    config = master_config(tmp_path, slave_timeout="200ms", send_heartbeat_interval="100ms")
    async with Broker(config) as master:
        with pytest.raises(StoreUnavailable, match="slaves in sync: 0, needed: 1, connected: 0"):
            await load(master, 1, ack="replicated", timeout_s=3.0)
        assert master.store.max_physical_offset == 0
        async with await trio.open_tcp_stream("127.0.0.1", port_of(master.ha_address)) as silent:
            await silent.send_all(bytes(8))  # a slave of RocketMQ that takes nothing
            await silent.receive_some(1)
            with pytest.raises(
                AckNotReached, match=r"the copies took longer than ha.slave_timeout \(0.2 s\)"
            ) as caught:
                await load(master, 1, ack="replicated")
        assert caught.value.receipt.queue_offset == 0


@pytest.mark.trio
@pytest.mark.parametrize(
    ("cluster", "count", "reason"),
    [
        ("Other", 5, "its cluster is 'DefaultCluster'"),
        ("DefaultCluster", 5, "they are different histories"),
        ("DefaultCluster", 7, "they are different histories"),
        ("DefaultCluster", 3, "they are different histories"),
        ("DefaultCluster", 0, "they are different histories"),
    ],
)
async def test_another_cluster_and_another_history_are_refused(
    tmp_path: Path, cluster: str, count: int, reason: str
) -> None:
    """Also if both are in their first epoch, and the other master's log is shorter or empty."""
    async with Broker(master_config(tmp_path / "1")) as master, Broker(master_config(tmp_path / "2")) as other:
        await load(master, 5)
        await load(other, 5)
        async with Broker(slave_config(tmp_path / "3", other)) as slave:
            await caught_up(other, slave)
        before = logs(tmp_path / "3")
        config = slave_config(tmp_path / "3", master, cluster=cluster)
        async with Broker(config) as slave:
            await until(lambda: reason in str(status_of(slave, "replication")))
        assert logs(tmp_path / "3") == before


class FakeMaster:
    """The log of a master, sent by the test; what the slave sent is in `received`."""

    def __init__(self, *parts: bytes) -> None:
        self.received = b""
        self._parts = parts

    async def serve(self, stream: trio.SocketStream) -> None:
        async with stream:
            while len(self.received) < 24:
                self.received += bytes(await stream.receive_some(1000))
            for part in self._parts:
                await stream.send_all(part)
            with suppress(trio.BrokenResourceError):
                while await stream.receive_some(1000):
                    pass


RECORD = encode_record(Record(topic="T", body=b"x"))


@pytest.mark.trio
@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ((HEADER.pack(5, 0),), "sends the log from offset 5 on, but this log continues at 0"),
        ((HEADER.pack(0, -1),), "announces -1 bytes at log offset 0"),
        ((HEADER.pack(0, 1 << 30),), "where 65536 are left in the file"),
        ((HEADER.pack(0, 100), bytes(100)), "magic 0x00000000 is not that of a record"),
        ((HEADER.pack(0, len(RECORD)), RECORD.replace(b"x", b"y")), "BODYCRC"),
        ((HEADER.pack(0, len(RECORD)) + RECORD, HEADER.pack(0, 0)), "but this log continues at 93"),
        ((HEADER.pack(0, 20), b"half"), "has sent nothing for 0.3 s"),
    ],
)
async def test_a_master_that_sends_something_else_is_refused_by_name(
    tmp_path: Path, parts: tuple[bytes, ...], reason: str
) -> None:
    fake = FakeMaster(*parts)
    async with Broker(master_config(tmp_path / "1")) as master, trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, fake.serve, [listener])
        config = slave_config(
            tmp_path / "2",
            master,
            master_ha_address=f"127.0.0.1:{listener.socket.getsockname()[1]}",
            housekeeping_interval="300ms",
            send_heartbeat_interval="100ms",
        )
        async with Broker(config) as slave:
            await until(lambda: reason in str(status_of(slave, "replication")))
            # A whole record before it may have been appended.
            assert slave.store.max_physical_offset in (0, reason.endswith("93") * len(RECORD))
        nursery.cancel_scope.cancel()
    assert fake.received[:24] == encode_hello(Hello(1, 1)) + REPORT.pack(0)


@pytest.mark.trio
async def test_a_slave_behind_deleted_files_is_set_aside_and_begins_again(tmp_path: Path) -> None:
    one, other = tmp_path / "1", tmp_path / "2"
    async with Broker(master_config(one)) as master:
        port, ha_port = port_of(master.address), port_of(master.ha_address)
        config = slave_config(other, master)
        async with Broker(config) as slave:
            await load(master, 5)
            await caught_up(master, slave)
        await load(master, 150, 5)
    (one / "commitlog" / f"{0:020d}").unlink()
    kept = logs(other)
    async with Broker(master_config(one, port=port, ha_port=ha_port)) as master, Broker(config) as slave:
        await caught_up(master, slave)
        await until(lambda: slave.store.dispatched_offset == master.store.max_physical_offset)
        assert slave.store.min_physical_offset == master.store.min_physical_offset == 65536
        for queue in range(4):
            assert slave.store.max_offset_in_queue("T", queue) == master.store.max_offset_in_queue("T", queue)
            assert slave.store.min_offset_in_queue("T", queue) == master.store.min_offset_in_queue("T", queue) > 0
        await load(master, 4, 155)
        await caught_up(master, slave)
    assert_same_logs(one, other)
    (aside,) = (other / "aside").iterdir()
    assert logs(aside) == kept


@pytest.mark.trio
async def test_a_machine_without_power_refuses_no_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slave connects again when it is back."""
    dialled = 0

    async def dial(address: str, tls: TlsConfig | None) -> trio.abc.Stream:
        nonlocal dialled
        dialled += 1
        if dialled == 1:
            await trio.sleep_forever()
        return await real_dial(address, tls)

    monkeypatch.setattr(ha_client, "dial", dial)
    monkeypatch.setattr(ha_client, "_ASK_TIMEOUT_S", 1.0)
    async with Broker(master_config(tmp_path / "1")) as master:
        await load(master, 3)
        async with Broker(slave_config(tmp_path / "2", master)) as slave:
            await caught_up(master, slave)
    assert dialled == 2


@pytest.mark.trio
async def test_rocketmqs_clients_of_a_sync_master(tmp_path: Path) -> None:
    """They name no level: stored in any case, and told by the code whether a slave has it."""
    config = master_config(
        tmp_path / "1", role="SYNC_MASTER", in_sync_replicas=2, slave_timeout="1s", send_heartbeat_interval="50ms"
    )
    async with Broker(config) as master:
        await load(master, 1, ack="flushed")
        client = RemotingClient(master.address)
        properties = {"producerGroup": "p", "topic": "T", "queueId": "0", "sysFlag": "0", "flag": "0"}
        ext = {**properties, "bornTimestamp": "0", "properties": "", "defaultTopic": "TBW102"}

        async def send(**more: str) -> ClientAnswer:
            return await client.call(RequestCode.SEND_MESSAGE, {**ext, **more}, b"x", timeout_s=5)

        alone = await send()
        assert alone.code == ResponseCode.SLAVE_NOT_AVAILABLE
        assert alone.ext["queueOffset"] == "1"
        assert (await send(properties="WAIT\x01false\x02")).code == ResponseCode.SUCCESS
        # Not of one that a consumer returns, which has the property of the broker's copy.
        returned = await send(topic="%RETRY%g", reconsumeTimes="1", properties="WAIT\x01false\x02")
        assert returned.code == ResponseCode.SLAVE_NOT_AVAILABLE
        async with await trio.open_tcp_stream("127.0.0.1", port_of(master.ha_address)) as silent:
            await silent.send_all(bytes(8))
            await silent.receive_some(1)
            late = await send()
            assert (late.code, late.ext["queueOffset"]) == (ResponseCode.FLUSH_SLAVE_TIMEOUT, "3")
        async with Broker(slave_config(tmp_path / "2", master)) as slave:
            await caught_up(master, slave)
            assert (await send()).code == ResponseCode.SUCCESS
            assert slave.store.max_physical_offset == master.store.max_physical_offset
        client.close()


@pytest.mark.trio
async def test_consumers_of_a_slave_see_what_is_confirmed(tmp_path: Path) -> None:
    async with Broker(master_config(tmp_path / "1")) as master:
        await load(master, 8)
        confirmed = master.store.max_physical_offset
        master.store.confirm_offset = confirmed
        await load(master, 4, 8)
        async with Broker(slave_config(tmp_path / "2", master)) as slave:
            await caught_up(master, slave)
            await until(lambda: slave.store.confirm_offset == slave.store.dispatched_offset == confirmed)
            assert slave.store.max_offset_in_queue("T", 0) == 2
            master.store.confirm_offset = end = master.store.max_physical_offset
            await until(lambda: slave.store.dispatched_offset == end)
            assert slave.store.max_offset_in_queue("T", 0) == 3


@pytest.mark.trio
async def test_an_empty_former_master_begins_where_its_master_does(tmp_path: Path) -> None:
    """It has a file for its log, without a record, that its master has deleted."""
    one, other = tmp_path / "1", tmp_path / "2"
    async with Broker(master_config(one)) as master:
        await load(master, 150)
    (one / "commitlog" / f"{0:020d}").unlink()
    (other / "commitlog").mkdir(parents=True)
    (other / "commitlog" / f"{0:020d}").write_bytes(bytes(65536))
    async with Broker(master_config(one)) as master, Broker(slave_config(other, master)) as slave:
        await caught_up(master, slave)
        assert slave.store.min_physical_offset == 65536
    assert_same_logs(one, other)
    assert [path.name for path in (other / "aside").glob("*/commitlog/*")] == [f"{0:020d}"]
