"""`rebuild`: the bytes that dispatch made."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from golden.test_mini_store import CONSUME_QUEUES, digests, mini_store
from reput_broker.store.base.errors import ForeignFile
from reput_broker.tools.rebuild import QueuesRebuild, rebuild, refuse_other_queues
from reput_protocol.store.layout import Geometry
from support.store_samples import examine, fill
from support.stores import bodies, dispatch_all, opened, put, small_options, tree


def made_anew(root: Path, **geometry: int) -> list[str]:
    found = examine(root, geometry=Geometry(**geometry))
    assert not found.log.damages
    return rebuild(found.layout, found.log.kept_end, [QueuesRebuild])


def queue_files(root: Path) -> dict[str, bytes]:
    return {name: data for name, data in tree(root).items() if name.startswith("consumequeue")}


def test_queues_come_out_byte_for_byte(tmp_path: Path) -> None:
    fill(tmp_path)
    wanted = queue_files(tmp_path)
    assert made_anew(tmp_path) == ["60 units in 2 queues"]
    assert queue_files(tmp_path) == wanted
    for path in (tmp_path / "consumequeue").rglob("0*"):
        if path.is_file():
            path.write_bytes(bytes(path.stat().st_size))
    made_anew(tmp_path)
    assert queue_files(tmp_path) == wanted
    shutil.rmtree(tmp_path / "consumequeue")
    made_anew(tmp_path, consume_queue_entries=10)
    assert queue_files(tmp_path) == wanted
    assert not list(tmp_path.glob("rebuild-*"))
    assert examine(tmp_path).report.is_clean


def test_queues_of_a_genuine_log_are_those_of_rocketmq(tmp_path: Path) -> None:
    mini_store(tmp_path)
    made_anew(tmp_path, consume_queue_entries=3)
    assert digests(tmp_path, CONSUME_QUEUES) == CONSUME_QUEUES


def test_a_queue_whose_messages_have_all_expired_keeps_its_numbers(tmp_path: Path) -> None:
    store = opened(small_options(tmp_path))
    put(store, b"old", topic="quiet")
    for number in range(60):
        put(store, b"%060d" % number, topic="busy")
    dispatch_all(store)
    assert store.close()
    min((tmp_path / "commitlog").iterdir()).unlink()
    (words,) = made_anew(tmp_path)
    assert "1 queue whose messages have all left the log was kept" in words
    again = opened(small_options(tmp_path))
    assert again.max_offset_in_queue("quiet", 0) == 1
    assert again.max_offset_in_queue("busy", 0) == 60
    assert bodies(again, "busy")[-1] == b"%060d" % 59
    assert again.close()


def test_a_rebuild_that_is_killed_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path)
    wanted = queue_files(tmp_path)

    def die(_: QueuesRebuild) -> str:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(QueuesRebuild, "finish", die)
        with pytest.raises(KeyboardInterrupt):
            made_anew(tmp_path)
    assert queue_files(tmp_path) == wanted
    store = opened(small_options(tmp_path))  # what it left does not disturb a start
    assert store.close()
    made_anew(tmp_path)
    assert not list(tmp_path.glob("rebuild-*"))


def test_queues_of_another_form_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "batchconsumequeue/T/0/00000000000000000000"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"x")
    with pytest.raises(ForeignFile, match="batch queues"):
        refuse_other_queues(tmp_path)
