"""Registration with name servers that answer, are down, slow, disagree, or refuse. Time is simulated."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import structlog.testing
import trio
from trio.testing import MockClock

from reput_broker.config.errors import ConfigError
from reput_broker.config.model import BrokerConfig
from reput_broker.namesrv import registration
from reput_broker.namesrv.registration import Announced, OwnBroker, Registration
from reput_broker.observe.counters import Counters
from reput_broker.tables.tables import Tables
from reput_broker.tenure.core import Role, Tenure
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.commands.namesrv import RegisterBrokerBody, RegisterBrokerHeader, body_crc32
from reput_protocol.commands.topic import KVTable, TopicConfig
from support.remote_peers import Network, Said, Server
from support.waiting import until

REGISTER, HEARTBEAT, LEAVE = (RequestCode.REGISTER_BROKER, RequestCode.BROKER_HEARTBEAT, RequestCode.UNREGISTER_BROKER)
ONE, TWO = "one:9876", "two:9876"


class Scene:
    """A broker that registers with two name servers."""

    def __init__(self, path: Path, network: Network, nursery: trio.Nursery) -> None:
        self.one, self.two = Server(network, ONE, nursery), Server(network, TWO, nursery)
        self.config = BrokerConfig(data_dir=path, name_servers=[ONE, TWO], advertise="me:10911", cluster="c")
        self.counters = Counters()
        self.masters: list[tuple[str, str]] = []
        self.tables = Tables(path, self.config, lambda: 7, lambda _name, _error: None)
        self.tenure = Tenure(Role.ASYNC_MASTER, 0)
        self.own = OwnBroker(self.config, self.tables, lambda: self.tenure)
        self.registration = Registration(
            self.config, self.counters, lambda address, ha: self.masters.append((address, ha))
        )
        self.own.ha_port = 10912
        self.tables.topics.put(TopicConfig("T", 4, 4))
        nursery.start_soon(self.registration.run)

    def announce(self) -> None:
        self.registration.announce(Announced(self.own, "me:10911"))

    @property
    def registered(self) -> dict[str, bool]:
        return {name: traffic.is_registered for name, traffic in self.counters.name_servers.items()}


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Network:
    return Network(monkeypatch)


@asynccontextmanager
async def scene(path: Path, network: Network) -> AsyncIterator[Scene]:
    async with trio.open_nursery() as nursery:
        yield Scene(path, network, nursery)
        nursery.cancel_scope.cancel()


def sent(server: Server, number: int = -1) -> tuple[RegisterBrokerHeader, RegisterBrokerBody]:
    _, header, body = server.of(REGISTER)[number]
    read = RegisterBrokerHeader.from_ext(header.ext)
    assert read.body_crc32 == body_crc32(body)
    return read, RegisterBrokerBody.decode(body)


@pytest.mark.trio
async def test_a_broker_registers_everywhere_with_all_its_topics(
    tmp_path: Path, network: Network, autojump_clock: MockClock
) -> None:
    async with scene(tmp_path, network) as broker:
        await trio.sleep(100)
        assert not broker.one.requests, "nothing before it serves"
        broker.announce()
        await trio.sleep(1)
        for server in (broker.one, broker.two):
            header, body = sent(server)
            assert (header.broker_name, header.broker_id, header.cluster_name) == ("broker-a", 0, "c")
            assert (header.broker_addr, header.ha_server_addr) == ("me:10911", "me:10912")
            assert (header.start_id, header.is_complete) == (broker.own.start_id, True)
            assert body.table.topics == broker.tables.topics.all()
        assert broker.registered == {ONE: True, TWO: True}
        assert broker.registration.status() == {ONE: "registered", TWO: "registered"}


@pytest.mark.trio
async def test_more_topics_than_a_frame_has_room_for_are_sent_compressed(
    tmp_path: Path, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "_JSON_BYTES_MAX", 100)
    async with scene(tmp_path, network) as broker:
        broker.announce()
        await until(lambda: broker.registered[ONE])
        header, body = sent(broker.one)
        assert header.compressed
        assert broker.one.of(REGISTER)[-1][2][:1] != b"{"
        assert body.table.topics.keys() == broker.tables.topics.all().keys()


@pytest.mark.trio
async def test_heartbeats_in_between_and_a_registration_at_intervals(
    tmp_path: Path, network: Network, autojump_clock: MockClock
) -> None:
    async with scene(tmp_path, network) as broker:
        broker.announce()
        await trio.sleep(301)
        assert 9 <= broker.one.count(REGISTER) <= 11
        assert 45 <= broker.one.count(HEARTBEAT) <= 55
        times = [at for at, _, _ in broker.one.requests]
        assert max(later - before for before, later in pairwise(times)) < 6


@pytest.mark.trio
async def test_a_change_of_topics_is_announced_at_once_and_changes_in_a_row_together(
    tmp_path: Path, network: Network, autojump_clock: MockClock
) -> None:
    async with scene(tmp_path, network) as broker:
        broker.announce()
        await trio.sleep(1)
        for number in range(100):
            broker.tables.topics.put(TopicConfig(f"U{number}", 1, 1))
        await trio.sleep(0.5)
        assert broker.one.count(REGISTER) == 2
        assert "U99" in sent(broker.one)[1].table.topics
        broker.tables.topics.delete("T")
        await trio.sleep(0.5)
        assert "T" not in sent(broker.one)[1].table.topics


@pytest.mark.trio
async def test_an_ended_connection_is_a_lost_registration(
    tmp_path: Path, network: Network, autojump_clock: MockClock
) -> None:
    async with scene(tmp_path, network) as broker:
        broker.announce()
        await trio.sleep(2)
        await broker.one.hang_up()
        await trio.sleep(0.5)
        assert broker.one.count(REGISTER) == 2
        assert broker.two.count(REGISTER) == 1


@pytest.mark.trio
async def test_a_name_server_that_is_down_delays_nothing_and_is_logged_once(
    tmp_path: Path, network: Network, autojump_clock: MockClock
) -> None:
    async with scene(tmp_path, network) as broker:
        broker.one.is_down = True
        with structlog.testing.capture_logs() as logs:
            broker.announce()
            await trio.sleep(60)
            assert broker.registered == {ONE: False, TWO: True}
            assert "Connection refused" in str(broker.registration.status()[ONE])
            assert broker.counters.name_servers[ONE].registrations["failed"] > 20
            broker.one.is_down = False
            await trio.sleep(3)
            assert broker.registered == {ONE: True, TWO: True}
        events = [(entry["event"], entry["name_server"]) for entry in logs]
        assert events == [
            ("not_registered", ONE),
            ("registered_with_name_server", TWO),
            ("registered_with_name_server", ONE),
        ]


@pytest.mark.trio
async def test_a_silent_name_server_delays_nothing(tmp_path: Path, network: Network, autojump_clock: MockClock) -> None:
    async with scene(tmp_path, network) as broker:
        broker.one.said[REGISTER] = broker.one.said[LEAVE] = Said(code=None)
        broker.announce()
        await trio.sleep(5)
        assert broker.registered == {ONE: False, TWO: True}
        await trio.sleep(5)
        assert "has not responded" in str(broker.registration.status()[ONE])
        del broker.one.said[REGISTER]
        await trio.sleep(10)
        assert broker.registered == {ONE: True, TWO: True}
        before = trio.current_time()
        await broker.registration.leave()
        assert trio.current_time() - before <= 1
        assert broker.two.count(LEAVE) == 1


@pytest.mark.trio
async def test_a_refusal_is_named_and_retried(tmp_path: Path, network: Network, autojump_clock: MockClock) -> None:
    async with scene(tmp_path, network) as broker:
        broker.one.said[REGISTER] = Said(code=ResponseCode.SYSTEM_ERROR)
        broker.announce()
        await trio.sleep(1)
        assert broker.registration.status()[ONE] == f"{ONE}: rejected the registration with code 1: said"
        broker.one.said[REGISTER] = Said(body=b"{")
        await trio.sleep(3)
        assert "JSON" in str(broker.registration.status()[ONE])
        del broker.one.said[REGISTER]
        await trio.sleep(3)
        assert broker.registered[ONE]


@pytest.mark.trio
async def test_an_old_name_server_without_heartbeats_is_registered_with(
    tmp_path: Path, network: Network, autojump_clock: MockClock
) -> None:
    async with scene(tmp_path, network) as broker:
        broker.one.said[HEARTBEAT] = Said(code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        broker.announce()
        await trio.sleep(100)
        assert broker.registered[ONE]
        broker.one.said[HEARTBEAT] = Said(code=ResponseCode.SYSTEM_ERROR)
        await trio.sleep(6)
        assert broker.counters.name_servers[ONE].registrations["failed"]


@pytest.mark.trio
async def test_a_stopping_broker_leaves_where_it_is_registered(
    tmp_path: Path, network: Network, autojump_clock: MockClock
) -> None:
    async with scene(tmp_path, network) as broker:
        await broker.registration.leave()
        broker.one.is_down = True
        broker.announce()
        await trio.sleep(1)
        await broker.registration.leave()
        assert broker.one.count(LEAVE) == 0
        (_, header, _) = broker.two.of(LEAVE)[0]
        assert header.ext == {"brokerName": "broker-a", "brokerAddr": "me:10911", "clusterName": "c", "brokerId": "0"}
        await trio.sleep(100)
        assert broker.two.count(REGISTER) == 1
        assert broker.registered == {ONE: False, TWO: False}


@pytest.mark.trio
async def test_a_slave_learns_its_master_from_the_first_name_server_that_knows_it(
    tmp_path: Path, network: Network, autojump_clock: MockClock
) -> None:
    async with scene(tmp_path, network) as broker:
        broker.tenure = Tenure(Role.SLAVE, 1)
        broker.two.said[REGISTER] = Said(ext={"masterAddr": "m2:1", "haServerAddr": "m2:2"})
        broker.announce()
        await trio.sleep(1)
        header, body = sent(broker.one)
        assert (header.broker_id, body.table.topics) == (1, {})
        assert set(broker.masters) == {("m2:1", "m2:2")}
        with structlog.testing.capture_logs() as logs:
            broker.one.said[REGISTER] = Said(ext={"masterAddr": "m1:1", "haServerAddr": "m1:2"})
            await trio.sleep(30)
        assert broker.masters[-1] == ("m1:1", "m1:2"), "soon: a slave registers instead of a heartbeat"
        disagree = [entry["masters"] for entry in logs if entry["event"] == "name_servers_disagree"]
        assert disagree == [("m1:1", "m2:1")], "once"
        broker.one.is_down = True
        await broker.one.hang_up()
        await trio.sleep(3)
        assert broker.masters[-1] == ("m2:1", "m2:2")


@pytest.mark.trio
async def test_a_master_at_no_address_is_not_followed(
    tmp_path: Path, network: Network, autojump_clock: MockClock
) -> None:
    async with scene(tmp_path, network) as broker:
        broker.tenure = Tenure(Role.SLAVE, 1)
        broker.one.said[REGISTER] = Said(ext={"masterAddr": "a..b:10911", "haServerAddr": "m1:x"})
        with structlog.testing.capture_logs() as logs:
            broker.announce()
            await trio.sleep(20)
        assert not broker.masters
        assert broker.registered == {ONE: True, TWO: True}
        said = [entry["addresses"] for entry in logs if entry["event"] == "addresses_not_usable"]
        assert said == [["a..b:10911", "m1:x"]], "once, however often they are named"
        broker.one.said[REGISTER] = Said(ext={"masterAddr": "m1:10911", "haServerAddr": "m1:x"})
        await trio.sleep(10)
        assert broker.masters[-1] == ("m1:10911", "")


@pytest.mark.trio
async def test_a_new_role_is_announced_with_its_epoch(
    tmp_path: Path, network: Network, autojump_clock: MockClock
) -> None:
    async with scene(tmp_path, network) as broker:
        broker.tenure = Tenure(Role.SLAVE, 1, epoch=4)
        broker.announce()
        await trio.sleep(1)
        broker.tenure = Tenure(Role.ASYNC_MASTER, 0, epoch=5)
        broker.announce()
        await trio.sleep(0.5)
        header, body = sent(broker.one)
        assert (header.broker_id, body.table.data_version["stateVersion"]) == (0, 5)
        assert "T" in body.table.topics


@pytest.mark.trio
async def test_ordered_topics_are_those_of_the_name_server(
    tmp_path: Path, network: Network, autojump_clock: MockClock
) -> None:
    async with scene(tmp_path, network) as broker:
        broker.tables.topics.put(TopicConfig("Was", 1, 1, order=True))
        broker.one.said[REGISTER] = Said(body=KVTable({"T": "broker-a:4"}).to_json())
        broker.announce()
        await trio.sleep(1)
        topics = broker.tables.topics.all()
        assert [name for name, config in topics.items() if config.order] == ["T"]
        assert sent(broker.one)[1].table.topics["T"].order


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"name_servers": ["names.example:9876"]}, "name server names.example:9876 is elsewhere"),
        ({"name_servers": ["127.0.0.1:9876", "10.0.0.1:1"], "host": "::1"}, "name server 10.0.0.1:1 is elsewhere"),
        ({"name_servers": ["localhost:9876"], "host": "0.0.0.0", "allow_insecure": True}, "host 0.0.0.0 is no address"),
        ({"name_servers": ["localhost:9876"]}, None),
        ({"name_servers": ["names.example:9876"], "advertise": "broker.example:10911"}, None),
        ({"name_servers": ["names.example:9876"], "host": "10.0.0.2", "allow_insecure": True}, None),
    ],
)
def test_an_address_that_clients_do_not_reach_is_refused(
    tmp_path: Path, options: dict[str, Any], named: str | None
) -> None:
    if named is None:
        BrokerConfig(data_dir=tmp_path, **options)
        return
    with pytest.raises(ConfigError, match=named) as refused:
        BrokerConfig(data_dir=tmp_path, **options)
    assert "set advertise to the host:port" in str(refused.value)
