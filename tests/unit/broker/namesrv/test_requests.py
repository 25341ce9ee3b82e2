"""The requests of a name server, over a connection."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from reput_broker.config.model import BrokerConfig
from reput_broker.namesrv.processor import NameServerProcessor
from reput_broker.namesrv.route_info import RouteInfoManager
from reput_broker.observe.counters import Counters
from reput_broker.remoting.client import RemotingClient
from reput_broker.remoting.request import ClientAnswer
from reput_broker.server.handling import RequestHandling
from reput_broker.server.listener import Server, bind
from reput_broker.tables.table_saver import TableSaver
from reput_broker.tables.tables import KVConfigManager
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.commands.namesrv import RegisterBrokerBody, RegisterBrokerHeader, body_crc32
from reput_protocol.commands.topic import QueueData, TopicConfig, TopicConfigTable, TopicRoute
from reput_protocol.wire.header import Value
from support.member_fakes import FakeClient

pytestmark = pytest.mark.trio

BROKER: dict[str, Value] = {"brokerName": "broker-a", "brokerAddr": "a:10911", "clusterName": "c", "brokerId": 0}
REGISTER: dict[str, Value] = {**BROKER, "haServerAddr": "a:10912"}
VERSION = {"counter": 1, "stateVersion": 0, "timestamp": 5}


def body(*topics: str) -> bytes:
    return RegisterBrokerBody(TopicConfigTable({t: TopicConfig(t, 4, 4) for t in topics}, VERSION)).to_json()


class Asking:
    """A name server alone, and a connection to it."""

    def __init__(self, path: Path) -> None:
        config = BrokerConfig(data_dir=path)
        self.routes = RouteInfoManager(None, trio.current_time)
        self.kv_config = KVConfigManager(path / "kvConfig.json")
        self.kv_config.load()
        self.processor = NameServerProcessor(self.routes, self.kv_config, TableSaver(self.kv_config))
        self.server = Server(
            config,
            RequestHandling(self.processor.handlers(), limits=config.limits),
            Counters(),
            connections_max=100,
            on_gone=self.routes.client_gone,
        )
        self.bound = bind("127.0.0.1", 0)
        self.address = "{}:{}".format(*self.bound.getsockname())
        self.client = RemotingClient(self.address)

    async def ask(self, code: int, ext: Mapping[str, Value] | None = None, data: bytes = b"") -> ClientAnswer:
        return await self.client.call(code, ext or {}, data, timeout_s=10)

    async def found(self, code: int, ext: Mapping[str, Value] | None = None, data: bytes = b"") -> Any:
        answer = await self.ask(code, ext, data)
        assert answer.code == 0, answer.remark
        return json.loads(answer.body) if answer.body else dict(answer.ext)


@asynccontextmanager
async def name_server(path: Path) -> AsyncIterator[Asking]:
    asking = Asking(path)
    async with trio.open_nursery() as nursery:
        await nursery.start(asking.server.run, {"main": asking.bound})
        yield asking
        asking.client.close()
        nursery.cancel_scope.cancel()


async def test_a_registered_broker_is_shown_and_gone_with_its_connection(tmp_path: Path) -> None:
    async with name_server(tmp_path) as names:
        unknown = await names.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
        assert unknown.code == ResponseCode.TOPIC_NOT_EXIST
        assert unknown.remark == "No topic route info in name server for the topic: T"
        broker = RemotingClient(names.address)
        await broker.call(RequestCode.REGISTER_BROKER, REGISTER, body("T"), timeout_s=10)
        data = {"brokerAddrs": {"0": "a:10911"}, "brokerName": "broker-a", "cluster": "c", "enableActingMaster": False}
        queues = {"brokerName": "broker-a", "perm": 6, "readQueueNums": 4, "topicSysFlag": 0, "writeQueueNums": 4}
        route = {"brokerDatas": [data], "filterServerTable": {}, "queueDatas": [queues]}
        cluster = {"brokerAddrTable": {"broker-a": data}, "clusterAddrTable": {"c": ["broker-a"]}}
        group = {"brokerAddrs": data["brokerAddrs"], "brokerName": "broker-a", "cluster": "c"}
        member = {"clusterName": "c", "brokerName": "broker-a"}
        topics = {"brokerAddr": "a:10911", "topicList": ["T"]}
        assert await names.found(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"}) == route
        assert await names.found(RequestCode.GET_BROKER_CLUSTER_INFO) == cluster
        assert await names.found(RequestCode.GET_BROKER_MEMBER_GROUP, member) == {"brokerMemberGroup": group}
        assert await names.found(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER) == topics
        assert await names.found(RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "c"}) == topics
        system = {**topics, "topicList": ["broker-a", "c"]}
        assert await names.found(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS) == system
        none = {**topics, "topicList": []}
        assert await names.found(RequestCode.GET_UNIT_TOPIC_LIST) == none
        assert await names.found(RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST) == none
        assert await names.found(RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST) == none
        broker.close()
        with trio.fail_after(10):
            while names.routes.registered:
                await trio.sleep(0.01)
        gone = await names.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
        assert gone.code == ResponseCode.TOPIC_NOT_EXIST


async def test_silent_brokers_are_looked_for(tmp_path: Path, autojump_clock: MockClock) -> None:
    asking = Asking(tmp_path)
    header = RegisterBrokerHeader("broker-a", "a:10911", "c", "", 0, 30_000)
    async with trio.open_nursery() as nursery:
        for task in asking.processor.tasks():
            nursery.start_soon(task)
        asking.routes.register(header, TopicConfigTable(), FakeClient(), "")
        await trio.sleep(29)
        assert asking.routes.registered
        await trio.sleep(7)
        assert not asking.routes.registered
        nursery.cancel_scope.cancel()
    asking.bound.close()


async def test_what_a_broker_tells_and_hears(tmp_path: Path) -> None:
    async with name_server(tmp_path) as names:
        data = body("T")
        wrong = await names.ask(RequestCode.REGISTER_BROKER, {**REGISTER, "bodyCrc32": 1}, data)
        assert wrong.code == ResponseCode.MESSAGE_ILLEGAL
        assert "checksum" in (wrong.remark or "")
        assert await names.found(RequestCode.QUERY_DATA_VERSION, BROKER, b"") == {"changed": "true"}
        await names.found(
            RequestCode.PUT_KV_CONFIG, {"namespace": "ORDER_TOPIC_CONFIG", "key": "T", "value": "broker-a:4"}
        )
        header = {**REGISTER, "bodyCrc32": body_crc32(data)}
        assert await names.found(RequestCode.REGISTER_BROKER, header, data) == {"table": {"T": "broker-a:4"}}
        slave = {**REGISTER, "brokerAddr": "s:10911", "brokerId": 1}
        answer = await names.ask(RequestCode.REGISTER_BROKER, slave, data)
        assert answer.ext == {"haServerAddr": "a:10912", "masterAddr": "a:10911"}
        same = await names.ask(RequestCode.QUERY_DATA_VERSION, BROKER, json.dumps(VERSION).encode())
        assert (same.ext, json.loads(same.body)) == ({"changed": "false"}, VERSION)
        assert await names.found(RequestCode.BROKER_HEARTBEAT, BROKER) == {}
        route = await names.found(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
        assert route["orderTopicConf"] == "broker-a:4"
        assert route["brokerDatas"][0]["brokerAddrs"] == {"0": "a:10911", "1": "s:10911"}
        later = json.dumps({"counter": 1, "stateVersion": 4, "timestamp": 5})
        await names.found(
            RequestCode.REGISTER_BROKER,
            REGISTER,
            data.replace(json.dumps(VERSION, separators=(",", ":")).encode(), later.encode()),
        )
        taken = await names.ask(RequestCode.REGISTER_BROKER, {**REGISTER, "brokerAddr": "twin:1"}, data)
        assert taken.code == ResponseCode.SYSTEM_ERROR
        assert "give one of them another id or name" in (taken.remark or "")
        assert await names.found(RequestCode.UNREGISTER_BROKER, BROKER) == {}
        assert (
            await names.found(RequestCode.UNREGISTER_BROKER, {**BROKER, "brokerAddr": "s:10911", "brokerId": 1}) == {}
        )
        assert names.routes.registered == 0


async def test_a_registration_may_be_larger_than_other_bodies(tmp_path: Path) -> None:
    async with name_server(tmp_path) as names:
        topics = [f"topic-{number}" for number in range(4000)]
        data = body(*topics)
        assert len(data) > 1 << 19
        await names.found(RequestCode.REGISTER_BROKER, REGISTER, data)
        listed = await names.found(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        assert listed["topicList"] == sorted(topics)


async def test_changes_by_tools(tmp_path: Path) -> None:
    async with name_server(tmp_path) as names:
        await names.found(RequestCode.REGISTER_BROKER, REGISTER, body("T", "U"))
        name = {"brokerName": "broker-a"}
        assert await names.found(RequestCode.WIPE_WRITE_PERM_OF_BROKER, name) == {"wipeTopicCount": "2"}
        route = await names.found(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
        assert route["queueDatas"][0]["perm"] == 4
        assert await names.found(RequestCode.ADD_WRITE_PERM_OF_BROKER, name) == {"addTopicCount": "2"}
        await names.found(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "U", "clusterName": "c"})
        noted = TopicRoute([QueueData("broker-a", 1, 1, 6, 0)]).to_json()
        await names.found(RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": "V"}, noted)
        listed = await names.found(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        assert listed["topicList"] == ["T", "V"]


async def test_key_value_settings_are_kept(tmp_path: Path) -> None:
    async with name_server(tmp_path) as names:
        item = {"namespace": "N", "key": "k"}
        missing = await names.ask(RequestCode.GET_KV_CONFIG, item)
        assert (missing.code, missing.remark) == (ResponseCode.QUERY_NOT_FOUND, "No config item, Namespace: N Key: k")
        assert (await names.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "N"})).code == 22
        for key, value in (("k", "v"), ("gone", "x"), ("ü", "1 2")):
            await names.found(RequestCode.PUT_KV_CONFIG, {"namespace": "N", "key": key, "value": value})
        await names.found(RequestCode.DELETE_KV_CONFIG, {"namespace": "N", "key": "gone"})
        await names.found(RequestCode.DELETE_KV_CONFIG, {"namespace": "N", "key": "never"})
        assert await names.found(RequestCode.GET_KV_CONFIG, item) == {"value": "v"}
    assert json.loads((tmp_path / "kvConfig.json").read_text()) == {"configTable": {"N": {"k": "v", "ü": "1 2"}}}
    async with name_server(tmp_path) as names:
        kept = await names.found(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "N"})
        assert kept == {"table": {"k": "v", "ü": "1 2"}}


@pytest.mark.parametrize(
    ("code", "ext", "data"),
    [
        (RequestCode.REGISTER_BROKER, {}, b""),
        (RequestCode.REGISTER_BROKER, {**REGISTER, "brokerId": "one"}, b""),
        (RequestCode.REGISTER_BROKER, {**REGISTER, "brokerAddr": "nowhere"}, b""),
        (RequestCode.REGISTER_BROKER, {**REGISTER, "brokerAddr": "0.0.0.0:10911"}, b""),
        (RequestCode.REGISTER_BROKER, REGISTER, b"{"),
        (RequestCode.REGISTER_BROKER, REGISTER, b"garbage"),
        (RequestCode.REGISTER_BROKER, REGISTER, b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":[]}}}'),
        (RequestCode.QUERY_DATA_VERSION, BROKER, b"[]"),
        (RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": "T"}, b"x"),
        (RequestCode.BROKER_HEARTBEAT, {}, b""),
        (RequestCode.PUT_KV_CONFIG, {"namespace": "N"}, b""),
    ],
)
async def test_wrong_requests_are_refused_and_change_nothing(
    tmp_path: Path, code: int, ext: Mapping[str, Value], data: bytes
) -> None:
    async with name_server(tmp_path) as names:
        answer = await names.ask(code, ext, data)
        assert answer.code == ResponseCode.INVALID_PARAMETER, answer.remark
        assert names.routes.registered == 0
