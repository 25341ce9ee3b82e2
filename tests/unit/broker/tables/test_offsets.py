"""Consumer offsets: the journal, its checkpoint, and RocketMQ's file."""

import errno
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog

from reput_broker.tables.config_file import ConfigFileDamaged, DataVersion
from reput_broker.tables.offset_journal import JournalWriteFailed
from reput_broker.tables.offsets import Commit, ConsumerOffsetManager
from reput_broker.tables.table_saver import save_now
from reput_protocol.names import POP_PASSED_GROUP, TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC, TRANSACTION_CHECK_GROUP

Open = Callable[[], ConsumerOffsetManager]


@pytest.fixture
def config_dir(tmp_path: Path) -> Path:
    return tmp_path / "config"


@pytest.fixture
def opened(config_dir: Path) -> Iterator[Open]:
    managers: list[ConsumerOffsetManager] = []

    def open_manager() -> ConsumerOffsetManager:
        manager = ConsumerOffsetManager(config_dir / "consumerOffset.json", clock_ms=lambda: 1_700_000_000_000)
        manager.load()
        managers.append(manager)
        return manager

    yield open_manager
    for manager in managers:
        manager.close()


def test_a_commit_survives_without_a_save(opened: Open) -> None:
    opened().commit("billing", "orders", 3, 42)
    after_kill = opened()
    assert after_kill.query("billing", "orders", 3) == 42
    assert after_kill.query("billing", "orders", 4) is None
    assert after_kill.for_topic("orders") == {"billing": {3: 42}}
    assert after_kill.for_group("billing") == {"orders": {3: 42}}
    assert after_kill.groups() == {"billing"}


def test_commits_before_during_and_after_a_save_survive(opened: Open) -> None:
    manager = opened()
    manager.commit("g", "t", 0, 1)
    job = manager.begin_save()
    assert job is not None
    manager.commit("g", "t", 0, 2)
    job.write()
    manager.commit("g", "t", 1, 3)
    job.adopt()
    manager.commit("g", "t", 2, 4)
    job.sync()
    assert opened().for_topic("t") == {"g": {0: 2, 1: 3, 2: 4}}


def test_a_save_starts_a_fresh_journal(opened: Open) -> None:
    manager = opened()
    empty_b = manager.journal_size_b
    for offset in range(100):
        manager.commit("g", "t", 0, offset)
    assert manager.journal_size_b > empty_b
    save_now(manager)
    assert manager.journal_size_b == empty_b
    assert manager.begin_save() is None  # nothing changed since
    assert opened().query("g", "t", 0) == 99


def test_the_file_is_one_that_rocketmq_reads(opened: Open, config_dir: Path) -> None:
    manager = opened()
    manager.commit("GroupA", "TopicTest", 0, 100)
    manager.commit("GroupA", "TopicTest", 1, 7)
    manager.commit("GroupB", "TopicTest", 0, 2)
    save_now(manager)
    members = json.loads((config_dir / "consumerOffset.json").read_bytes())
    assert members == {
        "dataVersion": {"counter": 0, "stateVersion": 0, "timestamp": 0},
        "groupTopicMap": {"GroupA": ["TopicTest"], "GroupB": ["TopicTest"]},
        "offsetTable": {"TopicTest@GroupA": {"0": 100, "1": 7}, "TopicTest@GroupB": {"0": 2}},
    }


def test_the_file_of_rocketmq_is_read(opened: Open, config_dir: Path) -> None:
    config_dir.mkdir()
    (config_dir / "consumerOffset.json").write_text(
        '{\n\t"dataVersion":{\n\t\t"counter":3,\n\t\t"stateVersion":0,\n\t\t"timestamp":1700000000000\n\t},\n'
        '\t"futureMember":[1],\n'
        '\t"offsetTable":{\n\t\t"%RETRY%GroupA@GroupA":{0:0\n\t\t},\n'
        '\t\t"TopicTest@GroupA":{0:100,1:7\n\t\t},\n\t\t"odd name":{5:1}\n\t}\n}'
    )
    manager = opened()
    assert manager.for_group("GroupA") == {"%RETRY%GroupA": {0: 0}, "TopicTest": {0: 100, 1: 7}}
    manager.commit("GroupA", "TopicTest", 0, 101)
    save_now(manager)
    members = json.loads((config_dir / "consumerOffset.json").read_bytes())
    assert members["futureMember"] == [1]
    assert members["offsetTable"]["odd name"] == {"5": 1}
    assert members["offsetTable"]["TopicTest@GroupA"] == {"0": 101, "1": 7}
    assert members["dataVersion"]["counter"] == 3


def test_the_data_version_steps_every_500th_commit(opened: Open) -> None:
    manager = opened()
    for offset in range(1000):
        manager.commit("g", "t", 0, offset)
    save_now(manager)
    assert json.loads(manager.file.path.read_bytes())["dataVersion"] == {
        "counter": 2,
        "stateVersion": 0,
        "timestamp": 1_700_000_000_000,
    }


def test_a_rewind_is_legal_and_a_negative_offset_is_ignored(opened: Open) -> None:
    manager = opened()
    manager.commit("g", "t", 0, 10)
    manager.commit("g", "t", 0, 4)
    manager.commit("g", "t", 0, -1)
    assert opened().query("g", "t", 0) == 4


def test_a_commit_that_may_only_increase_lowers_nothing(opened: Open) -> None:
    manager = opened()
    manager.commit("g", "t", 0, 10, increase_only=True)
    manager.commit("g", "t", 0, 4, increase_only=True)
    assert manager.query("g", "t", 0) == 10
    manager.commit("g", "t", 0, 11, increase_only=True)
    assert opened().query("g", "t", 0) == 11


def test_many_commits_are_one_write(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = opened()
    writes: list[int] = []
    real_write = os.write

    def write(fd: int, data: bytes) -> int:
        writes.append(len(data))
        return real_write(fd, data)

    monkeypatch.setattr(os, "write", write)
    manager.commit_many("g", [Commit("t", queue_id, 5) for queue_id in range(16)])
    manager.commit("g", "t", 3, 5)  # nothing new
    monkeypatch.undo()
    assert len(writes) == 1
    assert opened().for_topic("t") == {"g": dict.fromkeys(range(16), 5)}


def test_removed_offsets_stay_removed(opened: Open) -> None:
    manager = opened()
    for topic in ("kept", "gone"):
        manager.commit("a", topic, 0, 1)
        manager.commit("b", topic, 0, 1)
    manager.remove_topic("gone")
    manager.remove_group("b")
    manager.remove_topic("never there")
    assert opened().for_topic("gone") == {}
    assert opened().for_topic("kept") == {"a": {0: 1}}


def test_a_full_disk_refuses_the_commit_and_changes_nothing(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = opened()
    manager.commit("g", "t", 0, 1)
    real_write = os.write

    def write_half(fd: int, data: bytes) -> int:
        return real_write(fd, data[: len(data) // 2])

    monkeypatch.setattr(os, "write", write_half)
    with pytest.raises(JournalWriteFailed, match="No space left on device; the offset is not committed") as full:
        manager.commit("g", "t", 0, 2)
    assert full.value.disk_full
    assert manager.query("g", "t", 0) == 1
    monkeypatch.undo()
    # The half record is gone, so what is committed later is found after the good ones.
    manager.commit("g", "t", 1, 7)
    assert opened().for_topic("t") == {"g": {0: 1, 1: 7}}


def test_a_failed_save_loses_nothing(opened: Open, config_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = opened()
    manager.commit("g", "t", 0, 1)
    save_now(manager)
    before = (config_dir / "consumerOffset.json").read_bytes()

    def no_space(_fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    manager.commit("g", "t", 0, 2)
    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="No space left"):
        save_now(manager)
    monkeypatch.undo()
    assert (config_dir / "consumerOffset.json").read_bytes() == before
    manager.commit("g", "t", 1, 3)
    assert opened().for_topic("t") == {"g": {0: 2, 1: 3}}
    save_now(manager)
    assert opened().for_topic("t") == {"g": {0: 2, 1: 3}}


def test_a_journal_of_another_history_is_renamed_and_named(opened: Open, config_dir: Path) -> None:
    manager = opened()
    manager.commit("g", "t", 0, 5)
    save_now(manager)
    manager.commit("g", "t", 0, 6)
    # RocketMQ runs on the directory and moves on.
    (config_dir / "consumerOffset.json").write_text('{"offsetTable":{"t@g":{0:900}}}')
    with structlog.testing.capture_logs() as logs:
        assert opened().query("g", "t", 0) == 900
    assert [entry["event"] for entry in logs] == ["offset_journal_set_aside"]
    assert logs[0]["entries"] == 1
    assert (config_dir / "consumerOffset.journal.foreign-1").exists()
    assert opened().query("g", "t", 0) == 900


def test_a_file_that_is_not_a_journal_is_renamed(opened: Open, config_dir: Path) -> None:
    config_dir.mkdir()
    (config_dir / "consumerOffset.journal").write_bytes(b"something else entirely, and longer than a header")
    opened().commit("g", "t", 0, 1)
    assert (config_dir / "consumerOffset.journal.unreadable-1").read_bytes().startswith(b"something else")
    assert opened().query("g", "t", 0) == 1


def test_a_damaged_record_costs_only_itself_and_is_reported(opened: Open, config_dir: Path) -> None:
    manager = opened()
    positions = []
    for queue_id in range(3):
        positions.append(manager.journal_size_b)
        manager.commit("g", "t", queue_id, 9)
    manager.close()
    journal = config_dir / "consumerOffset.journal"
    data = bytearray(journal.read_bytes())
    data[positions[1] + 20] ^= 1
    journal.write_bytes(data)
    with structlog.testing.capture_logs() as logs:
        manager = opened()
    assert manager.for_topic("t") == {"g": {0: 9, 2: 9}}
    assert manager.damaged == 1
    assert [(entry["event"], entry["position"]) for entry in logs] == [("offset_journal_damaged", positions[1])]
    assert len(list(config_dir.glob("consumerOffset.journal.damaged-*"))) == 1
    with structlog.testing.capture_logs() as logs:
        manager = opened()
    assert manager.for_topic("t") == {"g": {0: 9, 2: 9}}
    assert manager.damaged == 0
    assert logs == []


def test_a_damaged_journal_keeps_no_place_in_the_op_queue(opened: Open, config_dir: Path) -> None:
    """That place relies on the one in the half queue, which the damage may have lost."""
    group, half, op = TRANSACTION_CHECK_GROUP, TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC
    manager = opened()
    manager.commit(group, half, 0, 4)
    manager.commit(group, op, 0, 1)
    lost = manager.journal_size_b
    manager.commit(group, half, 0, 9)
    manager.commit(group, op, 0, 2)
    manager.close()
    journal = config_dir / "consumerOffset.journal"
    data = bytearray(journal.read_bytes())
    data[lost + 20] ^= 1
    journal.write_bytes(data)
    for _ in range(2):
        manager = opened()
        assert (manager.query(group, half, 0), manager.query(group, op, 0)) == (4, None)
        manager.close()


def test_an_unreadable_file_without_backup_refuses_the_start(opened: Open, config_dir: Path) -> None:
    config_dir.mkdir()
    (config_dir / "consumerOffset.json").write_text("{ this is not JSON")
    with pytest.raises(ConfigFileDamaged, match=r"consumerOffset\.json cannot be read.*restore a good copy"):
        opened()
    assert (config_dir / "consumerOffset.json").read_text() == "{ this is not JSON"


def test_a_large_journal_asks_for_a_save(config_dir: Path) -> None:
    manager = ConsumerOffsetManager(config_dir / "consumerOffset.json", clock_ms=lambda: 0, journal_size_max=500)
    manager.load()
    offset = 0
    while not manager.save_due:
        offset += 1
        manager.commit("g", "t", 0, offset)
    assert manager.journal_size_b >= 500
    save_now(manager)
    assert not manager.save_due
    manager.close()


def test_what_changed_since_a_version_and_everything_after_a_removal(opened: Open) -> None:
    manager = opened()
    manager.commit("g", "T", 0, 5)
    manager.commit("h", "T", 0, 1)
    first = manager.changes_since(None)
    assert (first.is_partial, first.offsets) == (False, {("g", "T"): {0: 5}, ("h", "T"): {0: 1}})
    assert manager.changes_since(first.version).offsets == {}
    assert manager.changes_since(first.version).version == first.version
    manager.commit("g", "T", 1, 7)
    second = manager.changes_since(first.version)
    assert (second.is_partial, second.offsets) == (True, {("g", "T"): {0: 5, 1: 7}})
    manager.remove_group("h")
    third = manager.changes_since(second.version)
    assert (third.is_partial, third.offsets) == (False, {("g", "T"): {0: 5, 1: 7}})
    manager.commit("g", "T", 0, 6)
    for strange in ("", "x", f"{first.version}x", third.version[:-1] + "-1"):
        assert not manager.changes_since(strange).is_partial


def test_offsets_of_a_master_replace_those_here_and_survive(opened: Open) -> None:
    manager = opened()
    for group, topic in (("gone", "T"), ("g", "T"), ("g", "U")):
        manager.commit(group, topic, 0, 5)
    version = DataVersion(0, 9, 77)
    manager.adopt({("g", "T"): {0: 3, 1: 8}, ("new", "T"): {0: -1}}, is_partial=False, version=version)
    manager.adopt({("other", "T"): {0: 4}}, is_partial=True, version=version)
    for found in (manager, opened()):
        assert found.for_group("g") == {"T": {0: 3, 1: 8}}
        assert found.for_group("gone") == {}
        assert found.for_group("other") == {"T": {0: 4}}
    assert manager.version == version


def test_no_offset_is_beyond_its_queue_after_a_cut(opened: Open) -> None:
    manager = opened()
    manager.commit_many("g", [Commit("T", 0, 5), Commit("T", 1, 2), Commit("gone", 0, 4)])
    manager.commit(POP_PASSED_GROUP, "T", 0, 5000)  # of the log and not of a queue
    manager.limit(lambda topic, _: 3 if topic == "T" else 0)
    assert opened().query(POP_PASSED_GROUP, "T", 0) == 5000
    assert opened().for_group("g") == {"T": {0: 3, 1: 2}, "gone": {0: 0}}
