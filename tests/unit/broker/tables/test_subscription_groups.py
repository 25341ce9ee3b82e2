"""The table of groups: RocketMQ's file byte for byte, creation on first use, entries of a newer broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from reput_broker.config.sections import GroupsConfig
from reput_broker.tables.config_file import ConfigFileDamaged
from reput_broker.tables.subscription_groups import SubscriptionGroupManager
from reput_broker.tables.table_saver import save_now
from reput_protocol.commands.group import SubscriptionGroupConfig
from reput_protocol.errors import InvalidName
from reput_protocol.names import SYSTEM_GROUPS

T0 = 1_700_000_000_000

# store-format.md 10.6: what RocketMQ 5 writes of one group.
ENTRY = """\t\t"GroupA":{
\t\t\t"attributes":{},
\t\t\t"brokerId":0,
\t\t\t"consumeBroadcastEnable":true,
\t\t\t"consumeEnable":true,
\t\t\t"consumeFromMinEnable":true,
\t\t\t"consumeMessageOrderly":false,
\t\t\t"consumeTimeoutMinute":15,
\t\t\t"groupName":"GroupA",
\t\t\t"groupRetryPolicy":{
\t\t\t\t"type":"CUSTOMIZED"
\t\t\t},
\t\t\t"groupSysFlag":0,
\t\t\t"notifyConsumerIdsChangedEnable":true,
\t\t\t"retryMaxTimes":16,
\t\t\t"retryQueueNums":1,
\t\t\t"whichBrokerWhenConsumeSlowly":1
\t\t}"""


def opened(path: Path, **options: Any) -> SubscriptionGroupManager:
    manager = SubscriptionGroupManager(
        path / "config" / "subscriptionGroup.json", clock_ms=lambda: T0, options=GroupsConfig(**options)
    )
    manager.load()
    return manager


def written(path: Path) -> dict[str, Any]:
    members: dict[str, Any] = json.loads((path / "config" / "subscriptionGroup.json").read_text())
    return members


def test_a_fresh_broker_has_the_system_s_groups_and_no_file(tmp_path: Path) -> None:
    manager = opened(tmp_path)
    assert set(manager.all()) == SYSTEM_GROUPS
    assert manager.user_group_count() == 0
    assert not manager.has_file
    save_now(manager)
    assert not (tmp_path / "config").exists()


def test_a_group_is_made_on_first_use_and_written_as_rocketmq_does(tmp_path: Path) -> None:
    manager = opened(tmp_path)
    config = manager.find_or_create("GroupA")
    assert config == SubscriptionGroupConfig("GroupA")
    assert manager.find_or_create("GroupA") is config
    manager.set_readable("GroupA", "TopicTest", False)
    save_now(manager)
    text = (tmp_path / "config" / "subscriptionGroup.json").read_text()
    assert ENTRY in text
    assert '\t"forbiddenTable":{\n\t\t"GroupA":{\n\t\t\t"TopicTest":4\n\t\t}\n\t},\n' in text
    assert text.startswith(
        '{\n\t"dataVersion":{\n\t\t"counter":2,\n\t\t"stateVersion":0,\n\t\t"timestamp":1700000000000\n\t},\n'
    )
    again = opened(tmp_path)
    assert again.has_file
    assert again.all() == manager.all()
    assert again.version == manager.version
    assert not again.may_read("GroupA", "TopicTest")
    assert again.may_read("GroupA", "Other")
    again.set_readable("GroupA", "TopicTest", True)
    assert again.forbidden() == {}


def test_a_group_is_not_made_where_that_is_not_allowed(tmp_path: Path) -> None:
    manager = opened(tmp_path, auto_create=False)
    assert manager.find_or_create("g") is None
    manager.put(SubscriptionGroupConfig("g"))
    assert manager.find_or_create("g") is not None
    few = opened(tmp_path, auto_create_max=2)
    assert few.find_or_create("a") is not None
    assert few.find_or_create("b") is not None
    assert few.find_or_create("c") is None
    assert few.find_or_create("a") is not None
    few.put(SubscriptionGroupConfig("c"))
    assert few.user_group_count() == 3, "administrators are not bound by it"
    with pytest.raises(InvalidName):
        opened(tmp_path).find_or_create("no spaces")


def test_a_deleted_group_is_forgotten(tmp_path: Path) -> None:
    manager = opened(tmp_path)
    manager.find_or_create("g")
    manager.set_readable("g", "T", False)
    assert manager.delete("g")
    assert not manager.delete("g")
    save_now(manager)
    assert "g" not in written(tmp_path)["subscriptionGroupTable"]
    assert written(tmp_path)["forbiddenTable"] == {}


def test_entries_of_a_newer_broker_are_kept(tmp_path: Path) -> None:
    manager = opened(tmp_path)
    manager.find_or_create("g")
    save_now(manager)
    members = written(tmp_path)
    members["subscriptionGroupTable"]["g"]["newer"] = {"x": 1}
    members["subscriptionGroupTable"]["g"]["subscriptionDataSet"] = [{"topic": "T"}]
    members["subscriptionGroupTable"]["broken"] = {"groupName": "broken", "retryMaxTimes": "many"}
    members["subscriptionGroupTable"]["odd"] = 7
    members["another"] = [1]
    (tmp_path / "config" / "subscriptionGroup.json").write_text(json.dumps(members))
    again = opened(tmp_path)
    config = again.get("g")
    assert config is not None
    assert config.subscription_data_set == [{"topic": "T"}]
    assert again.get("broken") is None
    again.put(replace(config, retry_max_times=3))
    save_now(again)
    after = written(tmp_path)
    members["subscriptionGroupTable"]["g"]["retryMaxTimes"] = 3
    del members["dataVersion"], after["dataVersion"]
    assert after == members
    again.put(SubscriptionGroupConfig("broken"))
    save_now(again)
    assert written(tmp_path)["subscriptionGroupTable"]["broken"]["retryMaxTimes"] == 16


def test_an_unreadable_file_is_not_an_empty_table(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "subscriptionGroup.json").write_text("{")
    with pytest.raises(ConfigFileDamaged):
        opened(tmp_path)


def test_a_change_while_the_file_is_written_is_written_next_time(tmp_path: Path) -> None:
    manager = opened(tmp_path)
    manager.find_or_create("a")
    job = manager.begin_save()
    assert job is not None
    manager.find_or_create("b")
    job.write()
    job.adopt()
    assert "b" not in written(tmp_path)["subscriptionGroupTable"]
    save_now(manager)
    assert "b" in written(tmp_path)["subscriptionGroupTable"]
    manager.find_or_create("c")
    failed = manager.begin_save()
    assert failed is not None
    failed.abandon()
    assert manager.begin_save() is not None
