"""Queues rebuilt file by file of the log have the same bytes as those rebuilt at once."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from golden.test_mini_store import CONSUME_QUEUES, digests, mini_store
from reput_broker.store.message_store import MessageStore
from reput_broker.tools.rebuild import Derived, QueuesInParts, QueuesRebuild, rebuild, write_units
from reput_protocol.store.layout import Geometry, StoreLayout
from support.store_samples import copied, examine, fill
from support.stores import dispatch_all, opened, put, small_options, tree


def in_parts(root: Path, **geometry: int) -> list[str]:
    """Rebuild the queues, the files of the log in no order."""
    found = examine(root, geometry=Geometry(**geometry))

    def fill_queues(_layout: StoreLayout, made: Sequence[Derived], _deleted: object) -> None:
        (queues,) = made
        assert isinstance(queues, QueuesInParts)
        parts = queues.parts(found.log.kept_end, found.delay_levels_ms)
        runs = [write_units(part) for part in reversed(parts)][::-1]
        again = queues.put_together(run for part in runs for run in part)
        for part in parts if again else ():
            write_units(part._replace(only=again))

    return rebuild(found.layout, found.log.kept_end, [QueuesInParts], fill=fill_queues)


def queue_files(root: Path) -> dict[str, bytes]:
    return {name: data for name, data in tree(root).items() if name.startswith(("consumequeue", "checkpoint"))}


def plain(store: MessageStore) -> None:
    for number in range(90):
        put(store, b"%060d" % number, topic=f"t{number % 3}", queue_id=number % 2, tag=f"tag{number % 5}")


def expired(store: MessageStore) -> None:
    put(store, b"old", topic="quiet")
    plain(store)


def begun_again(store: MessageStore) -> None:
    plain(store)
    dispatch_all(store)
    store.delete_topic("t1")
    (store.options.data_dir / "deletedTopics").unlink()
    for number in range(40):
        put(store, b"%060d" % number, topic="t1", queue_id=1)


@pytest.mark.parametrize("make", [plain, expired, begun_again])
@pytest.mark.parametrize("without_first", [False, True])
def test_the_bytes_are_the_same(tmp_path: Path, make: Callable[[MessageStore], None], without_first: bool) -> None:
    root = tmp_path / "store"
    store = opened(small_options(root))
    make(store)
    dispatch_all(store)
    assert store.close()
    if without_first:
        min((root / "commitlog").iterdir()).unlink()
    other = copied(root, tmp_path / "other")
    found = examine(other)
    words = rebuild(found.layout, found.log.kept_end, [QueuesRebuild])
    made = in_parts(root)
    assert examine(root).report.is_clean
    if make is not begun_again:  # both generations of a queue in one batch: what is made at once lacks units then
        assert made == words
        assert queue_files(root) == queue_files(other)


def test_lost_queues_are_rebuilt_and_a_log_of_rocketmq_gives_its_queues(tmp_path: Path) -> None:
    fill(tmp_path / "store")
    wanted = queue_files(tmp_path / "store")
    shutil.rmtree(tmp_path / "store" / "consumequeue")
    assert in_parts(tmp_path / "store", consume_queue_entries=10) == ["60 units in 2 queues"]
    assert queue_files(tmp_path / "store") == wanted
    mini_store(tmp_path / "genuine")
    in_parts(tmp_path / "genuine", consume_queue_entries=3)
    assert digests(tmp_path / "genuine", CONSUME_QUEUES) == CONSUME_QUEUES
