"""A slave takes over its master's tables, and never more than its log has."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trio
from typing_extensions import override

from reput_broker.broker import Broker
from reput_broker.config.model import BrokerConfig
from reput_broker.ha import replica_state
from reput_broker.ha.service import MasterLog
from reput_broker.ha.slave_synchronize import SlaveSynchronize
from reput_broker.remoting.client import RemoteUnreachable, RemotingClient
from reput_broker.remoting.request import ClientAnswer, Request, Response
from reput_broker.tables.tables import Tables
from reput_broker.tenure.core import Master
from reput_client import Admin, Message, Producer, PullConsumer
from reput_protocol.codes import RequestCode
from reput_protocol.commands.replica import AwaitTableChangesHeader, SyncTableHeader, TableChanges
from reput_protocol.wire.header import Header, HeaderType
from support.inside import storage_of
from support.member_fakes import FakeClient
from support.tasks import run_by_the_clock, running
from support.waiting import until

MASTER = Master("m:1", "m:2")
NOTHING = {"dataVersion": {"counter": 1, "stateVersion": 0, "timestamp": 5}}


@dataclass
class Log:
    """What the synchronization sees of the slave's store."""

    data_dir: Path
    dispatched_offset: int = 0
    max_physical_offset: int = 0
    deleted: list[str] = field(default_factory=list)
    records: dict[str, int] = field(default_factory=dict)

    @property
    def options(self) -> Log:
        return self

    def delete_topics(self, topics: list[str]) -> None:
        self.deleted += topics

    def queues(self) -> list[tuple[str, int]]:
        return [(topic, 0) for topic in self.records]

    def max_offset_in_queue(self, _topic: str, _queue_id: int) -> int:
        return 1

    def queue_units(self, topic: str, *_: int) -> list[Any]:
        @dataclass
        class Unit:
            physical_offset: int

        return [Unit(self.records[topic])]


class FakeMaster:
    """Answers with tables; `is_reput` decides whether it names versions."""

    def __init__(self, *, is_reput: bool) -> None:
        self.is_reput = is_reput
        self.log_end = 0
        self.version = "1"
        self.is_reachable = True
        self.refusal: tuple[int, str] | None = None
        self.requests: list[tuple[int, Mapping[str, Any], float]] = []
        self.bodies: dict[int, dict[str, Any]] = {
            RequestCode.GET_ALL_CONSUMER_OFFSET: {**NOTHING, "offsetTable": {"T@g": {"0": 7, "1": 2}}},
            RequestCode.GET_ALL_TOPIC_CONFIG: {
                **NOTHING,
                "topicConfigTable": {"T": {"topicName": "T", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6}},
            },
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: {
                **NOTHING,
                "subscriptionGroupTable": {"g": {"groupName": "g", "retryMaxTimes": 3}},
                "forbiddenTable": {},
            },
            RequestCode.GET_ALL_DELAY_OFFSET: {**NOTHING, "offsetTable": {"3": 12}},
        }
        self.address = MASTER.address

    async def call(self, code: int, ext: Mapping[str, Any], body: bytes = b"", *, timeout_s: float) -> ClientAnswer:
        await trio.lowlevel.checkpoint()
        self.requests.append((code, ext, trio.current_time()))
        if not self.is_reachable:
            raise RemoteUnreachable(self.address, "cannot connect")
        if self.refusal is not None:
            return ClientAnswer(self.refusal[0], self.refusal[1], {}, b"")
        if code == RequestCode.GET_BROKER_RUNTIME_INFO:
            figures = {"commitLogMinOffset": "100", "commitLogMaxOffset": str(self.log_end)}
            return ClientAnswer(0, None, {}, json.dumps({"table": figures}).encode())
        if code not in self.bodies:
            return ClientAnswer(3, " request type not supported", {}, b"")
        answer: dict[str, Any] = {"tableVersion": self.version, "logEnd": str(self.log_end)}
        if self.is_reput and ext.get("tableVersion") == self.version:
            return ClientAnswer(0, None, answer, b"")
        return ClientAnswer(0, None, answer if self.is_reput else {}, json.dumps(self.bodies[code]).encode())

    def close(self) -> None:
        pass


class TellingMaster(FakeMaster):
    """Tells a member what has changed, as an elected master does."""

    def __init__(self) -> None:
        super().__init__(is_reput=True)
        self.changes = "run.1"
        self.on_taken: Callable[[str], None] = lambda _: None

    @override
    async def call(self, code: int, ext: Mapping[str, Any], body: bytes = b"", *, timeout_s: float) -> ClientAnswer:
        if code != RequestCode.AWAIT_TABLE_CHANGES:
            return await super().call(code, ext, body, timeout_s=timeout_s)
        asked = AwaitTableChangesHeader.from_ext(ext)
        self.on_taken(asked.taken)
        with trio.move_on_after(asked.wait_ms / 1000):
            while asked.known == self.changes:
                await trio.sleep(0.01)
        told = TableChanges(self.changes, ".".join([self.changes[-1]] * 7), 1, 0, self.log_end)
        return ClientAnswer(0, None, told.to_ext(HeaderType.JSON), b"")


@dataclass
class Slave:
    tables: Tables
    log: Log
    sync: SlaveSynchronize
    master: FakeMaster
    accepted: list[Master | None]
    forgotten: list[str]

    def offset(self) -> int | None:
        return self.tables.offsets.query("g", "T", 0)


def _clock_ms() -> int:
    return round(trio.current_time() * 1000)


@asynccontextmanager
async def slave_of(master: FakeMaster, data_dir: Path) -> AsyncIterator[Slave]:
    tables = Tables(data_dir / "config", BrokerConfig(), _clock_ms, lambda *_: None)
    tables.load()
    log, accepted, forgotten = Log(data_dir), list[Master | None]([MASTER]), list[str]()
    sync = SlaveSynchronize(
        log,  # type: ignore[arg-type]
        tables,
        MasterLog(lambda: log.max_physical_offset),
        lambda: accepted[0],
        forgotten.append,
        lambda _: master,  # type: ignore[arg-type,return-value]
        member=2 if isinstance(master, TellingMaster) else None,
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sync.run)
        yield Slave(tables, log, sync, master, accepted, forgotten)
        nursery.cancel_scope.cancel()
    tables.close()


@pytest.mark.parametrize("is_reput", [True, False])
def test_all_tables_are_taken_over_and_saved_in_the_same_files(tmp_path: Path, is_reput: bool) -> None:
    async def check() -> None:
        async with slave_of(FakeMaster(is_reput=is_reput), tmp_path) as slave:
            assert not slave.sync.has_offsets
            await trio.sleep(0.5)
            assert slave.offset() == 7
            assert slave.sync.has_offsets
            topic, group = slave.tables.topics.get("T"), slave.tables.groups.get("g")
            assert topic is not None
            assert topic.read_queue_nums == 2
            assert group is not None
            assert group.retry_max_times == 3
            assert slave.sync.master_min_offset == 100

    run_by_the_clock(check)
    config = tmp_path / "config"
    assert json.loads((config / "delayOffset.json").read_bytes())["offsetTable"] == {"3": 12}
    assert "T" in json.loads((config / "topics.json").read_bytes())["topicConfigTable"]
    assert "g" in json.loads((config / "subscriptionGroup.json").read_bytes())["subscriptionGroupTable"]
    assert json.loads((config / "consumerOffset.json").read_bytes())["offsetTable"]["T@g"] == {"0": 7, "1": 2}


@pytest.mark.parametrize("is_reput", [True, False])
def test_a_table_waits_for_the_log_that_it_belongs_to(tmp_path: Path, is_reput: bool) -> None:
    async def check() -> None:
        master = FakeMaster(is_reput=is_reput)
        master.log_end = 1000
        async with slave_of(master, tmp_path) as slave:
            await trio.sleep(5)
            slave.log.dispatched_offset = 999
            await trio.sleep(5)
            assert slave.offset() is None
            assert not (tmp_path / "config" / "delayOffset.json").exists()
            slave.log.dispatched_offset = 1000
            await trio.sleep(0.2)
            assert slave.offset() == 7
            assert (tmp_path / "config" / "delayOffset.json").exists()

    run_by_the_clock(check)


def test_a_member_reports_offsets_as_taken_once_they_survive_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The master then answers the commit: a failover to this member must not take it back."""
    journal, real, disk = tmp_path / "config" / "consumerOffset.journal", os.fdatasync, dict[str, bytes]()
    reported: list[str] = []

    def fdatasync(fd: int) -> None:
        real(fd)
        if os.fstat(fd).st_ino == journal.stat().st_ino:
            disk["journal"] = journal.read_bytes()

    def taken(changes: str) -> None:
        reported.append(changes)
        if changes == "run.2":
            assert disk.get("journal") == journal.read_bytes()

    async def check() -> None:
        master = TellingMaster()
        master.on_taken = taken
        async with slave_of(master, tmp_path) as slave:
            await trio.sleep(5)
            master.changes = master.version = "run.2"
            master.bodies[RequestCode.GET_ALL_CONSUMER_OFFSET]["offsetTable"] = {"T@g": {"0": 9}}
            await trio.sleep(5)
            assert slave.offset() == 9
            assert "run.2" in reported

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    run_by_the_clock(check)


def test_a_member_whose_journal_cannot_be_synced_reports_its_offsets_once_the_file_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second sync may succeed although the first has lost what was written."""
    journal, real = tmp_path / "config" / "consumerOffset.journal", os.fdatasync
    failed: list[int] = []
    reported: list[str] = []

    def fdatasync(fd: int) -> None:
        inode = os.fstat(fd).st_ino
        if not failed and journal.exists() and inode == journal.stat().st_ino:
            failed.append(inode)
            raise OSError(errno.EIO, "Input/output error")
        real(fd)

    def taken(changes: str) -> None:
        if changes:
            reported.append(changes)
            assert journal.stat().st_ino not in failed

    async def check() -> None:
        master = TellingMaster()
        master.on_taken = taken
        async with slave_of(master, tmp_path) as slave:
            async with running(slave.tables.offsets_soon.run):
                await trio.sleep(30)
            assert failed
            assert reported

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    run_by_the_clock(check)


@pytest.mark.parametrize(("is_reput", "rounds", "within_s"), [(True, 39, 0.5), (False, 1, 61.0)])
def test_how_often_the_master_is_asked(tmp_path: Path, is_reput: bool, rounds: int, within_s: float) -> None:
    async def check() -> None:
        master = FakeMaster(is_reput=is_reput)
        async with slave_of(master, tmp_path) as slave:
            await trio.sleep(10)
            asked = [code for code, _, _ in master.requests if code == RequestCode.GET_ALL_CONSUMER_OFFSET]
            assert rounds <= len(asked) <= rounds + 1
            master.version = "2"
            master.bodies[RequestCode.GET_ALL_CONSUMER_OFFSET]["offsetTable"] = {"T@g": {"0": 9}}
            await trio.sleep(within_s)
            assert slave.offset() == 9

    run_by_the_clock(check)


def test_the_time_of_the_members_is_when_the_master_last_said_so(tmp_path: Path) -> None:
    """They may not have changed for days when their master fails."""

    async def check() -> None:
        master = FakeMaster(is_reput=True)
        master.bodies[RequestCode.GET_GROUP_MEMBERS] = {"members": {"g": {"one": 6.0}}}
        async with slave_of(master, tmp_path):
            file = tmp_path / "config" / "groupMembers.json"
            await trio.sleep(300)
            assert trio.current_time() - file.stat().st_mtime < 20
            master.is_reachable = False
            await trio.sleep(300)
            assert trio.current_time() - file.stat().st_mtime >= 299

    run_by_the_clock(check)


def test_what_a_slave_changed_itself_is_replaced_except_groups_of_its_own_clients(tmp_path: Path) -> None:
    async def check() -> None:
        master = FakeMaster(is_reput=True)
        groups = master.bodies[RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG]["subscriptionGroupTable"]
        groups["deleted"] = {"groupName": "deleted"}
        async with slave_of(master, tmp_path) as slave:
            tables = slave.tables
            tables.groups.find_or_create("before")
            await trio.sleep(2)
            tables.groups.find_or_create("online")
            tables.topics.create_on_send("local")
            await trio.sleep(2)
            del groups["deleted"]
            master.version = "2"
            await trio.sleep(2)
            assert tables.topics.get("local") is None
            names = {name for name in ("before", "online", "deleted", "g") if tables.groups.get(name)}
            assert names == {"online", "g"}
            batches = [at for code, _, at in master.requests if code == RequestCode.GET_SINK_BATCHES]
            assert len(batches) == 1, "a master without that table is asked again after a minute"

    run_by_the_clock(check)


def test_a_topic_that_the_master_deleted_loses_its_queues_unless_it_was_created_again(tmp_path: Path) -> None:
    async def check() -> None:
        master = FakeMaster(is_reput=True)
        table = master.bodies[RequestCode.GET_ALL_TOPIC_CONFIG]["topicConfigTable"]
        table.update({name: {"topicName": name} for name in ("Old", "Again")})
        async with slave_of(master, tmp_path) as slave:
            await trio.sleep(2)
            slave.log.records = {"Old": 400, "Again": 600}
            for name in ("Old", "Again"):
                del table[name]
            master.version, master.log_end, slave.log.dispatched_offset = "2", 500, 700
            await trio.sleep(2)
            assert slave.log.deleted == slave.forgotten == ["Old"]
            assert slave.tables.topics.get("Old") is None

    run_by_the_clock(check)


@pytest.mark.parametrize("full", ["table", "queues"])
def test_a_topic_that_the_master_deleted_loses_its_queues_once_the_disk_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: str
) -> None:
    def no_room(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async def check() -> None:
        async with slave_of(FakeMaster(is_reput=True), tmp_path) as slave:
            slave.tables.topics.adopt_queues("gone", 1)
            with monkeypatch.context() as disk:
                if full == "table":
                    disk.setattr(slave.tables.topics.file, "write_temporary", no_room)
                else:
                    disk.setattr(slave.log, "delete_topics", no_room)
                await trio.sleep(15)
                assert slave.tables.topics.get("T") is not None
                assert slave.tables.topics.get("gone") is None
            await trio.sleep(15)
            assert (slave.log.deleted, slave.forgotten) == (["gone"], ["gone"])

    run_by_the_clock(check)
    assert "gone" not in json.loads((tmp_path / "config" / "topics.json").read_bytes())["topicConfigTable"]


def test_nothing_is_taken_from_a_slave_or_from_a_master_of_another_history(tmp_path: Path) -> None:
    async def check() -> None:
        master = FakeMaster(is_reput=True)
        master.refusal = (2, "NOT_MASTER: this broker is a slave")
        async with slave_of(master, tmp_path) as slave:
            await trio.sleep(3)
            assert {code for code, _, _ in master.requests} == {RequestCode.GET_ALL_CONSUMER_OFFSET}
            slave.accepted[0] = None
            master.refusal = None
            await trio.sleep(3)
            assert slave.offset() is None
            slave.accepted[0] = MASTER
            await trio.sleep(3)
            assert slave.offset() == 7

    run_by_the_clock(check)


def test_a_master_that_goes_away_leaves_the_tables_of_the_last_success(tmp_path: Path) -> None:
    async def check() -> None:
        master = FakeMaster(is_reput=True)
        async with slave_of(master, tmp_path) as slave:
            await trio.sleep(2)
            master.is_reachable = False
            await trio.sleep(30)
            assert slave.offset() == 7
            master.is_reachable = True
            master.version = "2"
            master.bodies[RequestCode.GET_ALL_CONSUMER_OFFSET]["offsetTable"] = {"T@g": {"0": 8}}
            await trio.sleep(3)
            assert slave.offset() == 8

    run_by_the_clock(check)


@pytest.mark.trio
async def test_a_slave_of_a_real_master_gets_what_changes(tmp_path: Path) -> None:
    store = {"commit_log_file_size": "1MiB", "index": False}
    async with Broker(BrokerConfig(data_dir=tmp_path / "master", port=0, store=store)) as broker:
        tables = Tables(tmp_path / "slave" / "config", BrokerConfig(), lambda: 0, lambda *_: None)
        tables.load()
        log = Log(tmp_path / "slave", dispatched_offset=1 << 40)
        sync = SlaveSynchronize(
            log,  # type: ignore[arg-type]
            tables,
            MasterLog(lambda: log.max_physical_offset),
            lambda: Master(broker.address, ""),
            lambda _: None,
        )

        async with (
            trio.open_nursery() as nursery,
            Producer(broker.address, group="p") as producer,
            PullConsumer(broker.address, group="g") as consumer,
            Admin(broker.address) as admin,
        ):
            nursery.start_soon(sync.run)
            await producer.send(Message("T", b"x"), queue_id=0)
            await consumer.commit("T", 0, 1)
            await until(lambda: tables.offsets.query("g", "T", 0) == 1)
            await producer.send(Message("T", b"x", delay_level=1), queue_id=0)
            await consumer.commit("T", 0, 2)
            await until(lambda: tables.offsets.query("g", "T", 0) == 2)
            delays = tmp_path / "slave" / "config" / "delayOffset.json"
            await until(delays.exists)
            await admin.delete_topic("T")
            await until(lambda: log.deleted == ["T"] and tables.offsets.query("g", "T", 0) is None)
            nursery.cancel_scope.cancel()
        tables.close()


@pytest.mark.trio
async def test_tables_larger_than_a_frame_arrive_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_state, "PART_BYTES", 1000)
    files = {"commit_log_file_size": "4MiB", "index_slots": 100, "index_entries": 400}
    config = BrokerConfig(data_dir=tmp_path / "1", port=0, ha_port=0, store=files)
    names = [f"topic-{number}" for number in range(40)]
    async with Broker(config) as master, Admin(master.address) as admin:
        for name in names:
            await admin.create_topic(name)
        ext = SyncTableHeader("", 0).to_ext(HeaderType.JSON)
        client = RemotingClient(master.address)
        part = await client.call(RequestCode.GET_ALL_TOPIC_CONFIG, ext, timeout_s=5.0)
        whole = await client.call(RequestCode.GET_ALL_TOPIC_CONFIG, {}, timeout_s=5.0)
        client.close()
        assert len(part.body) == 1000
        assert len(whole.body) > 5000, "slaves of earlier versions get all at once"
        slave = BrokerConfig(
            data_dir=tmp_path / "2", port=0, broker_id=1, ha={"role": "SLAVE", "master": master.address}, store=files
        )
        async with Broker(slave) as other:
            await until(lambda: all(storage_of(other).tables.topics.get(name) for name in names))
            await admin.create_topic("another")
            await until(lambda: storage_of(other).tables.topics.get("another"))


@pytest.mark.trio
async def test_parts_of_a_table_are_of_one_version() -> None:
    now, version = [0.0], ["1"]

    def whole(request: Request) -> Response:
        del request
        return Response(0, {"tableVersion": version[0]}, version[0].encode() * (2 * replica_state.PART_BYTES + 5))

    handle = replica_state.TableParts(lambda: now[0]).of(whole)

    async def ask(part_offset: int | None = None, part_of: str | None = None) -> tuple[bytes, int, Any]:
        header = SyncTableHeader("", part_offset, part_of)
        asked = Header(RequestCode.GET_ALL_TOPIC_CONFIG, 1, 0, None, header.to_ext(HeaderType.JSON))
        request = Request(FakeClient(), HeaderType.JSON, asked, memoryview(b""), 0.0, None)  # type: ignore[arg-type]
        answer = await handle(request)  # type: ignore[misc]
        assert isinstance(answer, Response)
        return answer.body[:1], len(answer.body), answer.ext.get("tableSize")

    size = 2 * replica_state.PART_BYTES + 5
    assert await ask() == (b"1", size, None)
    assert await ask(0) == (b"1", replica_state.PART_BYTES, size)
    version[0] = "2"
    assert await ask(2 * replica_state.PART_BYTES, "1") == (b"1", 5, size)
    now[0] += 31
    assert await ask(2 * replica_state.PART_BYTES, "1") == (b"2", replica_state.PART_BYTES, size), "from its beginning"
