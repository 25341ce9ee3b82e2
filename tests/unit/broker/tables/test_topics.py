"""The table of topics: system topics, creation on send, settings that survive."""

import json
from pathlib import Path
from typing import Any

import pytest

from reput_broker.config.model import BrokerConfig
from reput_broker.config.sections import TopicsConfig
from reput_broker.tables.table_saver import save_now
from reput_broker.tables.tables import Tables
from reput_broker.tables.topics import TopicConfigManager
from reput_protocol.commands.topic import TopicConfig
from reput_protocol.errors import InvalidName


def opened(path: Path, **options: Any) -> TopicConfigManager:
    manager = TopicConfigManager(
        path / "config" / "topics.json", clock_ms=lambda: 1_700_000_000_000, options=TopicsConfig(**options)
    )
    manager.load()
    return manager


def queues(config: TopicConfig | None) -> tuple[int, int, int] | None:
    return None if config is None else (config.read_queue_nums, config.write_queue_nums, config.perm)


def test_a_fresh_broker_has_the_system_s_topics(tmp_path: Path) -> None:
    manager = opened(tmp_path)
    shapes = {name: queues(config) for name, config in manager.all().items()}
    assert shapes == {
        "SELF_TEST_TOPIC": (1, 1, 6),
        "TBW102": (8, 8, 7),
        "BenchmarkTest": (1024, 1024, 6),
        "DefaultCluster": (16, 16, 7),
        "broker-a": (1, 1, 7),
        "OFFSET_MOVED_EVENT": (1, 1, 6),
        "RMQ_SYS_TRACE_TOPIC": (1, 1, 6),
        "SCHEDULE_TOPIC_XXXX": (18, 18, 6),
        "DefaultCluster_REPLY_TOPIC": (1, 1, 6),
        "rmq_sys_REVIVE_LOG_DefaultCluster": (8, 8, 6),
        "rmq_sys_SYNC_BROKER_MEMBER_broker-a": (1, 1, 1),
        "RMQ_SYS_TRANS_HALF_TOPIC": (1, 1, 6),
        "RMQ_SYS_TRANS_OP_HALF_TOPIC": (1, 1, 6),
        "rmq_sys_wheel_timer": (1, 1, 6),
        "rmq_sys_REPUT_DELAY_CANCEL": (1, 1, 6),
        "rmq_sys_reput_sink": (1, 1, 4),
        "rmq_sys_reput_staged": (1, 1, 4),
    }
    assert all(manager.is_system(name) for name in shapes)
    assert manager.user_topic_count() == 0
    assert not (tmp_path / "config").exists()  # nothing changed, nothing written


def test_a_master_without_the_sink_s_topics_does_not_remove_them(tmp_path: Path) -> None:
    manager = opened(tmp_path)
    manager.put(TopicConfig("mine", 1, 1))
    assert manager.adopt({"topicConfigTable": {}}) == ["mine"]
    assert {"rmq_sys_reput_sink", "rmq_sys_reput_staged"} <= set(manager.all())


def test_a_send_creates_its_topic(tmp_path: Path) -> None:
    manager = opened(tmp_path, default_queues=4)
    assert queues(manager.create_on_send("mine")) == (4, 4, 6)
    assert queues(manager.create_on_send("few", 2)) == (2, 2, 6)
    assert queues(manager.create_on_send("many", 100)) == (8, 8, 6)  # the template has the last word
    assert queues(manager.create_on_send("none", 0)) == (1, 1, 6)
    assert queues(manager.create_on_send("mine", 7)) == (4, 4, 6)
    assert manager.user_topic_count() == 4
    with pytest.raises(InvalidName):
        manager.create_on_send("no spaces")
    assert manager.get("no spaces") is None


def test_a_name_of_the_file_that_no_client_can_use_is_kept_and_listed(tmp_path: Path) -> None:
    """docs/migrate-rocketmq.md says so: an administrator has to see what to rename."""
    file = tmp_path / "config" / "topics.json"
    file.parent.mkdir()
    file.write_text('{"topicConfigTable": {"orders.eu": {"readQueueNums": 2, "writeQueueNums": 2, "perm": 6}}}')
    manager = opened(tmp_path)
    manager.create_on_send("mine")
    save_now(manager)
    assert {"orders.eu", "mine"} <= set(opened(tmp_path).all())
    assert queues(manager.get("orders.eu")) == (2, 2, 6)
    with pytest.raises(InvalidName, match=r"'\.' at position 6"):
        manager.create_on_send("orders.de")


def test_more_default_queues_than_the_template_has(tmp_path: Path) -> None:
    assert queues(opened(tmp_path, default_queues=32).create_on_send("wide")) == (32, 32, 6)


def test_without_automatic_creation_only_retry_topics_appear(tmp_path: Path) -> None:
    manager = opened(tmp_path, auto_create=False)
    assert manager.get("TBW102") is None
    assert "TBW102" not in manager.all()
    assert manager.create_on_send("mine") is None
    assert queues(manager.create_on_send("%RETRY%group")) == (1, 1, 6)
    assert queues(manager.create_internal("%DLQ%group")) == (1, 1, 6)


def test_automatic_creation_can_be_switched_while_we_live(tmp_path: Path) -> None:
    options = TopicsConfig()
    manager = TopicConfigManager(tmp_path / "topics.json", clock_ms=lambda: 0, options=options)
    manager.load()
    vars(options)["auto_create"] = False  # as a reload does
    assert manager.create_on_send("mine") is None
    vars(options)["auto_create"] = True
    assert manager.create_on_send("mine") is not None


def test_topics_survive(tmp_path: Path) -> None:
    manager = opened(tmp_path)
    manager.put(TopicConfig(topic_name="a", read_queue_nums=3, write_queue_nums=2, perm=4, order=True))
    manager.create_on_send("b")
    save_now(manager)
    manager.delete("b")
    assert not manager.delete("b")
    save_now(manager)
    again = opened(tmp_path)
    config = again.get("a")
    assert config is not None
    assert (config.read_queue_nums, config.write_queue_nums, config.perm, config.order) == (3, 2, 4, True)
    assert again.get("b") is None
    assert again.version == manager.version
    assert again.version.counter == 3


def test_a_topic_has_another_generation_once_it_was_created_again(tmp_path: Path) -> None:
    manager = opened(tmp_path)
    created = manager.create_on_send("T")
    assert created is not None
    first = created.generation
    assert len(first) == 16
    given = {"reput.generation": "mine", "message.type": "FIFO"}
    manager.put(TopicConfig("T", 8, 8, attributes=given))
    changed = manager.get("T")
    assert changed is not None
    assert (changed.generation, changed.attributes["message.type"]) == (first, "FIFO"), "changed, not created"
    save_now(manager)
    again = opened(tmp_path)
    assert again.all()["T"].generation == first
    again.delete("T")
    again.put(TopicConfig("T", attributes=given))
    assert again.all()["T"].generation not in (first, "mine", "")


def test_topics_that_were_not_created_here_have_no_generation(tmp_path: Path) -> None:
    """A topic of RocketMQ's, one whose queues were found without it, and the system's."""
    file = tmp_path / "config" / "topics.json"
    file.parent.mkdir()
    file.write_text(json.dumps({"topicConfigTable": {"T": {"topicName": "T"}}}))
    manager = opened(tmp_path)
    manager.put(TopicConfig("T", 8, 8))
    manager.adopt_queues("adopted", 2)
    manager.put(TopicConfig("rmq_sys_reput_sink", 1, 1))
    assert {topic.generation for topic in manager.all().values()} == {""}


def test_the_file_is_one_that_rocketmq_reads(tmp_path: Path) -> None:
    manager = opened(tmp_path)
    manager.put(
        TopicConfig(
            topic_name="BatchT",
            read_queue_nums=4,
            write_queue_nums=4,
            perm=6,
            attributes={"queue.type": "BatchCQ", "message.type": "NORMAL"},
        )
    )
    save_now(manager)
    text = (tmp_path / "config" / "topics.json").read_text()
    text = text.replace(manager.all()["BatchT"].generation, "5f3c")
    assert text.startswith(
        '{\n\t"dataVersion":{\n\t\t"counter":1,\n\t\t"stateVersion":0,\n\t\t"timestamp":1700000000000\n\t},\n'
        '\t"topicConfigTable":{\n\t\t"BatchT":{\n\t\t\t"attributes":{\n\t\t\t\t"message.type":"NORMAL",\n'
        '\t\t\t\t"queue.type":"BatchCQ",\n\t\t\t\t"reput.generation":"5f3c"\n\t\t\t},\n\t\t\t"order":false,\n\t\t\t"perm":6,\n'
        '\t\t\t"readQueueNums":4,\n\t\t\t"topicFilterType":"SINGLE_TAG",\n\t\t\t"topicName":"BatchT",\n'
        '\t\t\t"topicSysFlag":0,\n\t\t\t"writeQueueNums":4\n\t\t},\n'
    )
    assert "TBW102" in json.loads(text)["topicConfigTable"]


def test_unknown_members_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "config" / "topics.json"
    file.parent.mkdir()
    file.write_text(
        json.dumps(
            {
                "future": {"x": 1},
                "topicConfigTable": {
                    "T": {"topicName": "T", "newMember": [1], "attributes": {"reserve.time": "7"}},
                    "TBW102": {"topicName": "TBW102", "readQueueNums": 2, "writeQueueNums": 2, "perm": 7},
                },
            }
        )
    )
    manager = opened(tmp_path)
    assert queues(manager.get("T")) == (16, 16, 6)  # RocketMQ's defaults for what is missing
    assert queues(manager.create_on_send("new", 4)) == (2, 2, 6)  # the file's template counts
    save_now(manager)
    members = json.loads(file.read_text())
    assert members["future"] == {"x": 1}
    assert members["topicConfigTable"]["T"]["newMember"] == [1]
    assert members["topicConfigTable"]["T"]["attributes"] == {"reserve.time": "7"}


def test_a_failed_save_is_tried_again(tmp_path: Path) -> None:
    manager = opened(tmp_path)
    manager.create_on_send("mine")
    (tmp_path / "config").write_text("in the way")
    with pytest.raises(OSError, match=r"exists|directory"):
        save_now(manager)
    (tmp_path / "config").unlink()
    save_now(manager)
    assert opened(tmp_path).get("mine") is not None


def test_queues_of_the_log_create_and_widen_topics(tmp_path: Path) -> None:
    """A topic that was made smaller stays small: its other queues have nothing that is newer than the table."""
    tables = Tables(tmp_path, BrokerConfig(), lambda: 1000, lambda *_: None)
    tables.load()
    for name in ("grown", "shrunk", "same"):
        tables.topics.put(TopicConfig(name, 2, 2))
    before = tables.topics.get("grown")
    assert before is not None
    last_ms = {("grown", 1): 900, ("grown", 3): 1001, ("shrunk", 3): 999, ("gone", 1): 5, ("empty", 0): -1}
    tables.adopt_queues([*last_ms, ("same", 1), ("SCHEDULE_TOPIC_XXXX", 99)], lambda *queue: last_ms[queue])
    found = {name: queues(tables.topics.get(name)) for name in ("grown", "shrunk", "same", "gone", "empty")}
    assert found == {"grown": (4, 4, 6), "shrunk": (2, 2, 6), "same": (2, 2, 6), "gone": (2, 2, 6), "empty": (1, 1, 6)}
    after = tables.topics.get("grown")
    assert after is not None
    assert after.generation == before.generation


def test_a_message_newer_than_the_table_creates_its_topic(tmp_path: Path) -> None:
    """A slave that becomes the master may not have the topic of a message that waits for its time or its decision."""
    manager = opened(tmp_path)
    manager.put(TopicConfig("deleted", 2, 2))
    save_now(manager)
    manager = opened(tmp_path)
    changed_ms = manager.version.timestamp_ms
    assert manager.of_accepted("old", 1, changed_ms) is None
    assert queues(manager.of_accepted("new", 1, changed_ms + 1)) == (2, 2, 6)
    assert queues(manager.of_accepted("new", 5, changed_ms + 1)) == (2, 2, 6)
    assert manager.of_accepted("not a name!", 0, changed_ms + 1) is None
    assert manager.delete("deleted")
    assert manager.of_accepted("deleted", 0, changed_ms + 1) is None
