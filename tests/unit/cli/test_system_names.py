"""System groups are listed on request only, and no command suggests to create a system topic."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from reput_broker.tables.topic_access import no_topic
from reput_cli.broker import command as broker_command
from reput_cli.failures import worded
from reput_cli.group import command as group_command
from reput_cli.topic import command as topic_command
from reput_client.errors import BrokersFailed
from reput_protocol.commands.group_description import GroupSummary
from reput_protocol.commands.topic import QueueStats, TopicConfig, TopicStats
from reput_protocol.errors import ErrorCode, PermissionDenied, RequestNotSupported, TopicNotFound
from reput_protocol.record.message import MessageQueue


class FakeAdmin:
    def __init__(self, *_arguments: object, **_options: object) -> None: ...

    def __enter__(self) -> FakeAdmin:
        return self

    def __exit__(self, *_error: object) -> None: ...

    def list_groups(self) -> list[GroupSummary]:
        return [GroupSummary(name) for name in ("CID_RMQ_SYS_TRANS", "TOOLS_CONSUMER", "orders")]

    def cluster_info(self) -> SimpleNamespace:
        return SimpleNamespace(own_names=frozenset(("DefaultCluster", "broker-a")), masters={"broker-a": "h:1"})

    def topic_summaries(self, _topic: str | None = None, **_options: object) -> list[object]:
        raise RequestNotSupported(ErrorCode.UNSUPPORTED_REQUEST)

    def list_topics(self) -> list[str]:
        return ["%RETRY%g", "SCHEDULE_TOPIC_XXXX", "broker-a", "elsewhere", "gone", "orders", "secret"]

    def topic_configs(self, topic: str) -> dict[str, TopicConfig]:
        if topic == "gone":
            raise TopicNotFound(ErrorCode.NO_TOPIC, "it was deleted meanwhile")
        if topic == "secret":
            denied = PermissionDenied(ErrorCode.NO_PERMISSION, "lacks the right")
            raise BrokersFailed("settings of secret", {"broker-a": denied}, ())
        return {"broker-b" if topic == "elsewhere" else "broker-a": TopicConfig(topic, 8, 4)}

    def topic_stats(self, topic: str) -> TopicStats:
        return TopicStats({MessageQueue(topic, name, 0): QueueStats(10, 15, 0) for name in ("broker-a", "broker-b")})

    def describe_broker(self, _name: str | None) -> dict[str, str]:
        raise RequestNotSupported(ErrorCode.UNSUPPORTED_REQUEST)

    def broker_status(self, _name: str | None) -> dict[str, str]:
        return {
            "brokerActive": "true",
            "commitLogMaxOffset": "144",
            "putMessageAverageSize": "144.5",
            "brokerVersionDesc": "Reput 0.1.0",
            "remainHowManyDataToFlush": "0 B",
        }


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reput_client.blocking.Admin", FakeAdmin)


@pytest.mark.parametrize(("option", "count"), [(None, 1), ("--all", 3), ("-a", 3)])
def test_system_groups_are_listed_on_request(option: str | None, count: int) -> None:
    arguments = ["list", "-O", "json", *([option] if option else [])]
    groups = json.loads(CliRunner().invoke(group_command, arguments, catch_exceptions=False).stdout)
    assert len(groups) == count
    assert "orders" in [group["group"] for group in groups]


@pytest.mark.parametrize(
    ("topic", "remedy"),
    [
        ("orders", "reput topic list, or reput topic create orders"),
        ("rmq_sys_new", "reput topic list --all"),
        ("%RETRY%g", "reput topic list --all"),
    ],
)
def test_a_topic_that_is_not_there(topic: str, remedy: str) -> None:
    refusal = str(no_topic(topic))
    assert ("create it first" in refusal) == (topic == "orders")
    assert worded(TopicNotFound(ErrorCode.NO_TOPIC, refusal)).remedy == remedy


def test_figures_of_rocketmqs_brokers_are_numbers_in_json() -> None:
    result = CliRunner().invoke(broker_command, ["status", "-O", "json"], catch_exceptions=False)
    assert json.loads(result.stdout) == {
        "brokerActive": True,
        "commitLogMaxOffset": 144,
        "putMessageAverageSize": 144.5,
        "brokerVersionDesc": "Reput 0.1.0",
        "remainHowManyDataToFlush": "0 B",
    }


def test_topics_of_rocketmqs_brokers_have_their_settings_and_messages() -> None:
    result = CliRunner().invoke(topic_command, ["list", "--json"], catch_exceptions=False)
    (orders,) = json.loads(result.stdout)
    assert (orders["topic"], orders["read_queues"], orders["write_queues"], orders["messages"]) == (
        "orders", 8, 4, 5,
    )  # fmt: skip
    assert "left out: 1 topic" in result.stderr
    every = json.loads(CliRunner().invoke(topic_command, ["list", "-a", "--json"], catch_exceptions=False).stdout)
    assert [row["topic"] for row in every] == ["%RETRY%g", "SCHEDULE_TOPIC_XXXX", "broker-a", "orders"]
