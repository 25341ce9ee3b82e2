"""System topics and groups are listed on request only, and no command suggests to create them."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from reput_broker.tables.topic_access import no_topic
from reput_cli.broker import command as broker_command
from reput_cli.failures import CommandFailed, worded
from reput_cli.group import command as group_command
from reput_cli.topic import command as topic_command
from reput_protocol.commands.group_description import GroupSummary
from reput_protocol.errors import ErrorCode, RequestNotSupported, TopicNotFound


class FakeAdmin:
    def __init__(self, *_arguments: object, **_options: object) -> None: ...

    def __enter__(self) -> FakeAdmin:
        return self

    def __exit__(self, *_error: object) -> None: ...

    def list_groups(self) -> list[GroupSummary]:
        return [GroupSummary(name) for name in ("CID_RMQ_SYS_TRANS", "TOOLS_CONSUMER", "orders")]

    def cluster_info(self) -> SimpleNamespace:
        return SimpleNamespace(
            own_names=frozenset(("DefaultCluster", "broker-a")), masters={"broker-a": "h:1"}
        )

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


@pytest.mark.parametrize("topic", ["TBW102", "rmq_sys_new", "DefaultCluster", "broker-a"])
@pytest.mark.parametrize("verb", ["create", "alter --queues 1", "delete"])
def test_a_system_topic_is_neither_made_nor_changed(topic: str, verb: str) -> None:
    result = CliRunner().invoke(topic_command, [*verb.split(), topic])
    assert isinstance(result.exception, CommandFailed)
    assert result.exception.what == f"topic {topic} belongs to the broker"
    assert "alter" not in str(result.exception.remedy)
    assert "Continue?" not in result.output


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
