"""Index files are taken in the order of their names (store format 5.8), also where the records disagree.

RocketMQ names a file by its local clock. Set back, or at the end of summer time, the clock gives a later file an
earlier name. No key may be missed for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from reput_broker.store.base.options import StoreOptions
from reput_broker.store.index.file import IndexFile
from reput_broker.store.index.service import IndexService
from reput_broker.store.message_store import MessageStore
from support.stores import FakeClock, dispatch_all, killed, opened, put, small_options

MESSAGES = 20
KEYS_A_FILE = 7


def filled(directory: Path) -> MessageStore:
    """Two full index files, which are synced, and a third."""
    clock = FakeClock()
    store = opened(small_options(directory, index_entries=KEYS_A_FILE + 1), clock)
    for number in range(MESSAGES):
        clock.now_ms += 1000
        put(store, b"%d" % number, keys=[f"k{number}"])
        dispatch_all(store)
        store.flush_index()
    assert len(list(store.options.index_dir.iterdir())) == 3
    return store


def give_names(options: StoreOptions, order: Sequence[int]) -> list[str]:
    """Name the files so that they come in this order; return the names."""
    paths = sorted(options.index_dir.iterdir())
    for place, number in enumerate(order):
        paths[number].rename(options.index_dir / f"{20260101000000000 + place}")
    return sorted(path.name for path in options.index_dir.iterdir())


def forget_mark(options: StoreOptions) -> None:
    """Leave of the checkpoint what RocketMQ writes."""
    checkpoint = options.data_dir / "checkpoint"
    checkpoint.write_bytes(checkpoint.read_bytes()[:40].ljust(4096, b"\0"))


def found(store: MessageStore) -> list[int]:
    """How many messages each key finds."""
    store.complete_index()
    return [len(store.query_message("T", f"k{number}", 9).records) for number in range(MESSAGES)]


def test_files_are_loaded_in_the_order_of_their_names(tmp_path: Path) -> None:
    store = filled(tmp_path / "store")
    assert store.close()
    names = give_names(store.options, (2, 0, 1))
    index = IndexService(store.options.index_dir, 16, KEYS_A_FILE + 1, clock_ms=FakeClock())
    index.load()
    assert [file.path.name for file in index.files] == names
    begins = [file.header.begin_physical_offset for file in index.files]
    assert begins.index(max(begins)) == 0
    for file in index.files:
        file.close()


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 0, 1), (2, 1, 0), (0, 2, 1)])
@pytest.mark.parametrize("by_rocketmq", [False, True])
@pytest.mark.parametrize("after_kill", [False, True])
def test_no_key_is_missed_whatever_the_names_are(
    tmp_path: Path, order: Sequence[int], by_rocketmq: bool, after_kill: bool
) -> None:
    store = filled(tmp_path / "store")
    options = store.options
    if after_kill:
        store.write_checkpoint()
        options = killed(store, tmp_path / "image")
    assert store.close()
    give_names(options, order)
    if by_rocketmq:
        forget_mark(options)
    again = opened(options)
    while again.index_step():
        pass
    assert found(again) == [1] * MESSAGES
    newest = max(path.name for path in options.index_dir.iterdir())
    for number in range(MESSAGES, MESSAGES + 2 * KEYS_A_FILE):
        put(again, b"%d" % number, keys=[f"k{number}"])
        dispatch_all(again)
    assert max(path.name for path in options.index_dir.iterdir()) > newest, "new files come after all others"
    assert found(again) == [1] * MESSAGES
    assert again.close()


def test_a_recreated_file_is_not_taken_for_the_synced_one(tmp_path: Path) -> None:
    store = filled(tmp_path / "store")
    store.write_checkpoint()
    options = killed(store, tmp_path / "image")
    assert store.close()
    give_names(options, (1, 0, 2))
    again = opened(options)  # removes all, and rebuilds them from the same records
    assert found(again) == [1] * MESSAGES
    options = killed(again, tmp_path / "second")
    assert again.close()
    for path in options.index_dir.iterdir():
        data = path.read_bytes()
        path.write_bytes(data[:40].ljust(len(data), b"\0"))  # what a power cut may leave of what was not synced
    last = opened(options)
    assert found(last) == [1] * MESSAGES
    assert last.close()


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("order", [(1, 0, 2), (0, 2, 1), (2, 1, 0)])
@pytest.mark.parametrize("removed", [0, 1, 2, 3])
def test_an_interrupted_removal_leaves_no_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: Sequence[int], removed: int
) -> None:
    store = filled(tmp_path / "store")
    store.write_checkpoint()
    options = killed(store, tmp_path / "image")
    assert store.close()
    give_names(options, order)  # a start removes all, and rebuilds them

    def delete_some(index: IndexService, files: Sequence[IndexFile]) -> None:
        for file in files[:removed]:
            file.path.unlink()
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(IndexService, "_delete", delete_some)
        with pytest.raises(Killed):
            opened(options)
    again = opened(options)
    assert found(again) == [1] * MESSAGES
    assert again.close()
