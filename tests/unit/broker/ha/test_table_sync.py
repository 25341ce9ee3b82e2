"""What a master says of its tables: versions that differ when a table does, and cost little."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from reput_broker.broker import Broker
from reput_broker.config.model import BrokerConfig
from reput_broker.delay.state import DelayState
from reput_broker.groups.membership import Membership
from reput_broker.ha.replica_state import TableSyncProcessor
from reput_broker.tables.tables import MessageRequestModes
from reput_client import Message, Producer
from reput_protocol.codes import MessageModel
from reput_protocol.commands.pop import MessageRequestMode
from support.inside import parts_of, storage_of
from support.member_fakes import FakeClient, consumer_data
from support.waiting import until


class Master:
    """A broker that takes messages, and the processor of its tables."""

    def __init__(self, broker: Broker) -> None:
        parts = parts_of(broker)
        core = parts.core
        self.address = broker.address
        self.store, self.delays = core.store, storage_of(broker).delays
        self.modes, self.members = core.tables.request_modes, core.groups.membership
        batches = parts.staging.batches_version
        self._sync = TableSyncProcessor(core, self.delays, batches, broker.handlers)
        self._versions = self._sync.versions()

    def has_changed(self) -> bool:
        """Tell whether the versions differ from those of the last call."""
        before, self._versions = self._versions, self._sync.versions()
        return self._versions != before

    def heartbeat(self, client: FakeClient, model: MessageModel = MessageModel.CLUSTERING) -> None:
        data = consumer_data("g", "T", model=model)
        self.members.heard(client, "me", 0, 479, consumers=[data], producer_groups=[])


@asynccontextmanager
async def master_of(path: Path) -> AsyncIterator[Master]:
    async with Broker(BrokerConfig(data_dir=path, port=0, ha_port=0)) as broker:
        yield Master(broker)


@pytest.mark.trio
async def test_versions_differ_by_each_change_of_members_and_modes(tmp_path: Path) -> None:
    async with master_of(tmp_path) as master:
        client = FakeClient()
        master.heartbeat(client)
        assert master.has_changed()
        master.heartbeat(client)
        assert not master.has_changed()
        master.heartbeat(client, MessageModel.BROADCASTING)
        assert master.has_changed(), "members that broadcast are not awaited"
        master.members.gone(client)
        assert master.has_changed()
        master.modes.put(MessageRequestMode("T", "g", "POP"))
        assert master.has_changed()
        master.modes.forget(group="another")
        assert not master.has_changed()
        master.modes.forget(group="g")
        assert master.has_changed()


@pytest.mark.trio
async def test_versions_encode_no_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Members ask for them twenty times a second each."""

    def encoded(_: object) -> object:
        raise AssertionError("it is encoded for each question")

    async with master_of(tmp_path) as master:
        monkeypatch.setattr(Membership, "to_await", encoded)
        monkeypatch.setattr(MessageRequestModes, "members", encoded)
        monkeypatch.setattr(DelayState, "offset_members", encoded)
        assert not master.has_changed()


@pytest.mark.trio
async def test_the_levels_have_no_other_version_because_the_log_grows(tmp_path: Path) -> None:
    """Each member would write its file of them to the disk twenty times a second."""
    async with master_of(tmp_path) as master, Producer(master.address) as producer:
        await producer.send(Message("T", b"much later", delay_level=18))
        await producer.send(Message("T", b"x"))
        await until(lambda: master.store.dispatched_offset == master.store.wrote_offset)
        master.has_changed()
        await producer.send(Message("T", b"x"))
        await trio.testing.wait_all_tasks_blocked()
        assert not master.has_changed()
        await producer.send(Message("T", b"soon", delay_level=1))
        await until(lambda: any(master.delays.offset_members()["offsetTable"].values()))
        assert master.has_changed()
