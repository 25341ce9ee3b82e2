"""The journal of a large table of topics: what a creation writes, and what a start finds after a kill at any point."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from reput_broker.tables.config_file import ConfigFile, SaveJob
from reput_broker.tables.table_saver import save_now
from reput_broker.tables.topics import TopicConfigManager, TopicJournal
from reput_broker.tools.report import Report
from reput_broker.tools.tables import topics_in_force
from reput_broker.tools.verify import read_topics
from reput_client.arrow.directory import StoreDirectory
from reput_protocol.commands.topic import TopicConfig

LARGE = 300
"""Topics with which the table is no longer written whole."""


@pytest.fixture(autouse=True)
def no_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills are simulated here, not power cuts."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(os, "fdatasync", lambda _: None)


def opened(root: Path) -> TopicConfigManager:
    manager = TopicConfigManager(root / "config" / "topics.json", clock_ms=lambda: 1_700_000_000_000)
    manager.load()
    return manager


def create(manager: TopicConfigManager, *names: str) -> None:
    for name in names:
        manager.put(TopicConfig(name, 2, 2))
    save_now(manager)


def large(root: Path) -> TopicConfigManager:
    """Return a table that has a journal with one change, of the topic `first`."""
    manager = opened(root)
    create(manager, *(f"topic-{number}" for number in range(LARGE)))
    assert not manager.has_journal
    create(manager, "first")
    assert manager.has_journal
    return manager


def found(root: Path, copy: Path) -> set[str]:
    """Return the topics that a start finds after a kill now, and check that the tools agree."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(root, copy)
    of_tools = topics_in_force(copy / "config").members["topicConfigTable"]
    names = set(opened(copy).all()) - set(opened(copy / "none").all())
    assert names == {name for name in of_tools if opened(copy / "none").get(name) is None}
    return names


def test_a_creation_writes_as_much_in_a_large_table_as_in_a_small_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    whole, append = ConfigFile.write_temporary, TopicJournal._write

    def write_whole(self: ConfigFile, data: bytes) -> None:
        written.append(len(data))
        whole(self, data)

    def write_line(self: TopicJournal, line: bytes, *arguments: object) -> None:
        written.append(len(line))
        append(self, line, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(ConfigFile, "write_temporary", write_whole)
    monkeypatch.setattr(TopicJournal, "_write", write_line)
    manager = opened(tmp_path)
    bytes_of = []
    for start in range(0, 3_000, 1_000):
        written.clear()
        for number in range(start, start + 1_000):
            create(manager, f"topic-{number}")
        bytes_of.append(sum(written) / 1_000)
    # The first thousand has the small table, which is written whole. Entries have some 270 bytes.
    assert max(bytes_of[1:]) < 1_500
    assert bytes_of[0] < 12_000
    assert found(tmp_path, tmp_path / "copy") == {f"topic-{number}" for number in range(3_000)}


def test_what_was_saved_is_found_after_a_kill(tmp_path: Path) -> None:
    root, names = tmp_path / "broker", {*(f"topic-{number}" for number in range(LARGE)), "first"}
    manager = large(root)
    assert found(root, tmp_path / "copy") == names
    manager.delete("topic-7")
    manager.delete("first")
    create(manager, "first", "second")  # deleted and created again, in one save
    assert found(root, tmp_path / "copy") == (names | {"second"}) - {"topic-7"}
    again = opened(tmp_path / "copy")
    assert again.version == manager.version
    assert again.get("first") == manager.get("first")
    create(again, "third")  # appended to the journal that was found
    assert again.has_journal
    assert "third" in found(tmp_path / "copy", tmp_path / "copy-2")
    assert topics_of_spark(tmp_path / "copy") >= {"third", "second", "topic-8"}


def topics_of_spark(root: Path) -> set[str]:
    """Return the topics that Spark sees in a directory."""
    (root / "commitlog").mkdir()
    with StoreDirectory(str(root)) as directory:
        return set(directory.configured)


def steps(job: SaveJob) -> Iterator[str]:
    for step in ("write", "adopt", "sync"):
        getattr(job, step)()
        yield step


def test_a_kill_during_a_save_of_the_whole_file(tmp_path: Path) -> None:
    root = tmp_path / "broker"
    manager = large(root)
    names = found(root, tmp_path / "copy")
    manager.write_whole()
    job = manager.begin_save()
    assert job is not None
    for step in steps(job):
        with capture_logs() as logs:
            assert found(root, tmp_path / "copy") == names, step
        assert logs == []
    assert not manager.has_journal
    assert not (root / "config" / "topics.journal").exists()
    # Between the two renames there is only the backup.
    manager = large(tmp_path / "other")
    config = tmp_path / "other" / "config"
    (config / "topics.json").rename(config / "topics.json.bak")
    assert found(tmp_path / "other", tmp_path / "copy") == names
    assert manager.has_journal


def test_a_failed_line_is_followed_by_a_save_of_the_whole_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "broker"
    manager = large(root)
    names = found(root, tmp_path / "copy")

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    manager.put(TopicConfig("second", 2, 2))
    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", fail)
        with pytest.raises(OSError, match=r"topics\.journal"):
            save_now(manager)
    assert found(root, tmp_path / "copy") == names
    save_now(manager)
    assert not manager.has_journal
    assert found(root, tmp_path / "copy") == names | {"second"}
    # A file that was replaced, and a journal that could not be removed: nothing is appended to that.
    create(manager, "third")
    manager.write_whole()
    with monkeypatch.context() as patched:
        patched.setattr(TopicJournal, "remove", lambda _: fail(0))
        with pytest.raises(OSError, match="No space"):
            save_now(manager)
    create(manager, "fourth")
    assert found(root, tmp_path / "copy") == names | {"second", "third", "fourth"}


def test_a_torn_line_is_dropped_and_a_damaged_one_is_set_aside(tmp_path: Path) -> None:
    root = tmp_path / "broker"
    manager = large(root)
    create(manager, "second")
    names = found(root, tmp_path / "copy")
    journal = root / "config" / "topics.journal"
    good = journal.read_bytes()
    for cut in range(len(good) - 1, good.rindex(b"\n", 0, -1), -50):
        journal.write_bytes(good[:cut])
        assert found(root, tmp_path / "copy") == names - {"second"}
        create(again := opened(tmp_path / "copy"), "third")
        assert again.has_journal
        assert found(tmp_path / "copy", tmp_path / "copy-2") == (names - {"second"}) | {"third"}
    place = good.index(b'"first"')
    journal.write_bytes(good[:place] + b"X" + good[place + 1 :])
    report = Report()
    read_topics(root / "config", report)
    assert [(fault.kind, fault.file, fault.reason) for fault in report.faults] == [
        ("journal", journal, "a line there is damaged, valid ones follow")
    ]
    with capture_logs() as logs:
        assert set(opened(root).all()) >= names - {"first"}
    assert [(each["event"], each["log_level"]) for each in logs] == [("topic_journal_set_aside", "error")]
    assert "second" in json.loads((root / "config" / "topics.json").read_bytes())["topicConfigTable"]
    assert (root / "config" / "topics.journal.damaged-1").exists()


def test_a_journal_beside_the_file_of_another_program_is_set_aside(tmp_path: Path) -> None:
    root = tmp_path / "broker"
    large(root)
    path = root / "config" / "topics.json"
    members = json.loads(path.read_bytes())
    members["dataVersion"]["counter"] += 10
    path.write_text(json.dumps(members))
    report = Report()
    assert "first" not in (read_topics(root / "config", report) or {})
    assert ["topics.journal continues another topics.json" in note for note in report.notes] == [True]
    with capture_logs() as logs:
        assert opened(root).get("first") is None
    assert [each["event"] for each in logs] == ["topic_journal_set_aside"]
    assert (root / "config" / "topics.journal.foreign-1").exists()
