"""The configuration under RocketMQ's names: requests 25, 26, 318, 319 and 2004."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from reput_broker.config.errors import ConfigError
from reput_broker.config.model import BrokerConfig
from reput_broker.config.properties import Properties, read_properties, written_properties
from reput_broker.ha.role_refusals import NOT_WHILE_COMPLETING, refusal_while_completing
from reput_broker.name_server import is_option
from reput_protocol.codes import RequestCode, ResponseCode
from reput_protocol.wire.header import HeaderType
from support.broker_bench import BenchClient, broker_bench
from support.inside import log_of
from support.tasks import run_by_the_clock

on_a_broker = pytest.mark.trio(run=run_by_the_clock)


async def shown(client: BenchClient, code: int = RequestCode.GET_BROKER_CONFIG) -> dict[str, str]:
    answer = await client.ask(code, {})
    assert answer is not None
    assert answer.code == 0, answer.remark
    assert '"counter":' in str(answer.ext["version"])
    return read_properties(answer.body)


async def update(client: BenchClient, code: int = RequestCode.UPDATE_BROKER_CONFIG, **values: str) -> tuple[int, str]:
    answer = await client.ask(code, {}, written_properties(values))
    assert answer is not None
    return answer.code, answer.remark or ""


def test_options_have_rocketmq_s_names_and_units(tmp_path: Path) -> None:
    config = BrokerConfig(
        data_dir=tmp_path,
        name_servers=["a:1", "b:2"],
        advertise="10.0.0.7:10911",
        store={
            "file_reserved_time": "48h",
            "flush": "async",
            "flush_interval": "250ms",
            "message_size_max": "2MiB",
            "disk_max_used_ratio": 0.5,
            "consume_queue_entries": 1000,
        },
        groups={"reset_tells_members": True},
        console={"token": "0123456789abcdef"},
    )
    found = Properties(config).all()
    expected = {
        "namesrvAddr": "a:1;b:2",
        "brokerIP1": "10.0.0.7",
        "fileReservedTime": "48",
        "flushDiskType": "ASYNC_FLUSH",
        "flushIntervalCommitLog": "250",
        "maxMessageSize": "2097152",
        "diskMaxUsedSpaceRatio": "50",
        "mappedFileSizeConsumeQueue": "20000",
        "useServerSideResetOffset": "false",
        "autoCreateTopicEnable": "true",
        "brokerRole": "ASYNC_MASTER",
        "storePathCommitLog": str(tmp_path / "commitlog"),
        "console.token": "***",
        "log.level": "info",
    }
    assert expected.items() <= found.items()


def test_every_name_is_read_as_it_is_written(tmp_path: Path) -> None:
    """What the tools show can be set again."""
    config = BrokerConfig(data_dir=tmp_path)
    properties = Properties(config)
    facts = {"messageDelayLevel", "msgTraceTopicName", "traceTopicEnable", "traceOn", "storePathCommitLog"}
    for name, value in properties.all().items():
        if "." not in name and name not in facts | {"clientCallbackExecutorThreads"}:
            (key,) = properties.options({name: value})
            assert properties.name_of(key) in (key, f"{name} ({key})")


def test_a_name_server_alone_has_only_its_own_options(tmp_path: Path) -> None:
    properties = Properties(BrokerConfig(data_dir=tmp_path), is_option)
    found = properties.all()
    assert {"listenPort", "bindAddress", "kvConfigPath", "log.level"} <= {*found}
    assert not {"fileReservedTime", "store.file_reserved_time", "messageDelayLevel"} & {*found}
    assert properties.options({"log.level": "debug"}) == {"log.level": "debug"}
    with pytest.raises(ConfigError, match="fileReservedTime: unknown key"):
        properties.options({"fileReservedTime": "5"})


@on_a_broker
async def test_a_live_option_is_set_by_rocketmq_s_name(tmp_path: Path) -> None:
    async with broker_bench(tmp_path) as bench:
        client = bench.client(HeaderType.JSON)
        version = (await client.ask(RequestCode.GET_BROKER_CONFIG, {})).ext["version"]  # type: ignore[union-attr]
        assert await update(client, fileReservedTime="5", autoCreateTopicEnable="false") == (0, "")
        config = bench.broker.config
        assert (config.store.file_reserved_time, config.topics.auto_create) == (5 * 3600.0, False)
        assert (await shown(client))["fileReservedTime"] == "5"
        answer = await client.ask(RequestCode.GET_BROKER_CONFIG, {})
        assert answer is not None
        assert answer.ext["version"] != version
        assert (await update(client, RequestCode.UPDATE_NAMESRV_CONFIG, serverChannelMaxIdleTimeSeconds="90"))[0] == 0
        assert config.limits.idle_timeout == 90.0
        assert (await shown(client, RequestCode.GET_NAMESRV_CONFIG))["serverChannelMaxIdleTimeSeconds"] == "90"


@on_a_broker
async def test_what_cannot_be_set_is_refused_by_name_and_nothing_is_changed(tmp_path: Path) -> None:
    async with broker_bench(tmp_path) as bench:
        client = bench.client(HeaderType.JSON)
        for name, value, says in (
            ("listenPort", "99", "listenPort (port): needs a restart"),
            ("fileReservedTim", "5", "fileReservedTim: unknown key, did you mean fileReservedTime?"),
            ("brokerConfigPath", "/x", "brokerConfigPath: unknown key"),
            ("fileReservedTime", "soon", "fileReservedTime: 'soon' is not a whole number"),
            ("syncFlushTimeout", "0", "syncFlushTimeout (store.sync_timeout): "),
            ("traceTopicEnable", "false", "traceTopicEnable: cannot be changed here"),
        ):
            code, remark = await update(
                client, RequestCode.UPDATE_BROKER_CONFIG, autoCreateTopicEnable="false", **{name: value}
            )
            assert (code, says in remark) == (ResponseCode.NO_PERMISSION, True), remark
            assert "nothing was changed" in remark
        assert bench.broker.config.topics.auto_create is True


@on_a_broker
async def test_reading_ahead_in_the_log_is_set_by_mode(tmp_path: Path) -> None:
    async with broker_bench(tmp_path / "s") as bench:
        client = bench.client()
        for mode, expected in (("1", "false"), ("0", "true"), ("2", "true")):
            answer = await client.ask(RequestCode.SET_COMMITLOG_READ_MODE, {"READ_AHEAD_MODE": mode})
            assert answer is not None
            assert (answer.code == 0) == (mode != "2"), answer.remark
            assert (await shown(client))["dataReadAheadEnable"] == expected
            assert log_of(bench.broker.store).files.mappings.reads_ahead() is (expected == "true")


@on_a_broker
async def test_broker_permission_4_refuses_new_messages_and_6_takes_them(tmp_path: Path) -> None:
    async with broker_bench(tmp_path) as bench:
        client = bench.client(HeaderType.JSON)
        assert (await shown(client))["brokerPermission"] == "6"
        assert (await update(client, brokerPermission="4"))[0] == 0
        refused = await client.send("orders", b"x")
        assert "reput broker readonly" in (refused.remark or "")
        assert (await shown(client))["brokerPermission"] == "4"
        assert (await update(client, brokerPermission="6"))[0] == 0
        assert (await client.send("orders", b"x")).code == 0
        assert (await update(client, brokerPermission="2"))[0] != 0


@on_a_broker
async def test_broker_permission_lifts_no_refusal_of_a_master_that_completes_a_batch(tmp_path: Path) -> None:
    async with broker_bench(tmp_path) as bench:
        client = bench.client(HeaderType.JSON)
        refuse = partial(bench.parts.server.handling.refuse, "completion", NOT_WHILE_COMPLETING)
        refuse(refusal_while_completing("batch 7 of query q"))
        for permission in ("6", "4", "6"):
            assert (await update(client, brokerPermission=permission))[0] == 0
            assert "completes batch 7" in ((await client.send("orders", b"x")).remark or "")
        assert (await update(client, brokerPermission="4"))[0] == 0
        refuse(None)
        assert "reput broker readonly" in ((await client.send("orders", b"x")).remark or "")
        assert (await update(client, brokerPermission="6"))[0] == 0
        assert (await client.send("orders", b"x")).code == 0


def test_lines_are_read_as_java_writes_them() -> None:
    assert read_properties(b"#comment\n\n a = b=c \nempty=\n") == {"a": "b=c", "empty": ""}
    with pytest.raises(ValueError, match="name=value"):
        read_properties(b"word\n")
