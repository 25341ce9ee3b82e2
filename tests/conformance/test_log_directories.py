"""A log in several directories, opened alternately: both find all of it and place new files alike."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from conformance import checks, workload
from conformance.apache import SMALL, Apache
from conformance.counts import COUNTS
from conformance.reput_side import put_lists, store_options, view
from reput_broker.store.base.options import StoreOptions
from reput_broker.store.message_store import MessageStore
from support.stores import FakeClock, killed, opened

pytestmark = pytest.mark.process

Lists = list[list[workload.Sent]]
FILE = SMALL.commit_log_file_size


class Turns:
    """One directory with a log elsewhere, opened by both alternately, and what was put into it."""

    def __init__(self, root: Path, directories: int, *, pool: bool) -> None:
        self.options: StoreOptions = replace(
            store_options(root / "store"),
            commit_log_dirs=tuple(root / f"disk-{number}" for number in range(directories)),
            transient_store_pool=pool,
        )
        self.sent: Lists = []

    def open(self) -> MessageStore:
        return opened(self.options, FakeClock(int(time.time() * 1000)))

    def reput(self, more: Lists) -> None:
        """Let Reput check everything and put more."""
        store = self.open()
        checks.holds(view(store), workload.queued(self.sent))
        put_lists(store, more)
        self.sent += more
        assert store.close()

    def apache(self, more: Lists, *, kill: bool = False) -> None:
        """Let RocketMQ do the same; and see that Reput reads the same records then."""
        with Apache(
            "store",
            self.options.data_dir,
            log_dirs=self.options.commit_log_dirs,
            read_only_log_dirs=self.options.read_only_commit_log_dirs,
        ) as apache:
            checks.holds(checks.apache_view(apache), workload.queued(self.sent))
            for batch in more:
                for line in apache.put(batch, batch=len(batch) > 1):
                    assert line["status"] == "PUT_OK"
            self.sent += more
            theirs = checks.apache_view(apache)
            if kill:
                apache.kill()
            else:
                apache.stop()
        store = self.open()
        checks.same(view(store), theirs)
        assert store.close()

    def places(self) -> dict[int, int]:
        """The directory, by its number, of each file of the log, by its number."""
        return {
            int(path.name) // FILE: number
            for number, directory in enumerate(self.options.commit_log_dirs)
            for path in (directory.iterdir() if directory.is_dir() else ())
        }


def some(seed: int, count: int = 250) -> Lists:
    return [*workload.messages(seed, count)]


@pytest.mark.parametrize("pool", [False, pytest.param(True, marks=pytest.mark.long)])
def test_two_directories_in_turn(tmp_path: Path, pool: bool) -> None:
    turns = Turns(tmp_path, 2, pool=pool)
    turns.reput(some(20))
    turns.apache(some(21))
    turns.reput(some(22))
    turns.apache(some(23), kill=True)
    turns.reput(some(24))
    turns.apache([])
    places = turns.places()
    assert [*sorted(places)] == [*range(len(places))]
    assert len(places) > 8
    assert places == {number: number % 2 for number in places}
    COUNTS["log files where the other would put them"] += len(places)


def test_rocketmq_begins_the_log_and_a_directory_is_retired(tmp_path: Path) -> None:
    turns = Turns(tmp_path, 3, pool=False)
    turns.apache(some(30))
    turns.reput(some(31))
    before = turns.places()
    retired = turns.options.commit_log_dirs[1]
    turns.options = replace(turns.options, read_only_commit_log_dirs=(retired,))
    turns.reput(some(32))
    turns.apache(some(33), kill=True)
    turns.reput(some(34))
    after = turns.places()
    assert before == {number: number % 3 for number in before}
    made = {number: place for number, place in after.items() if number > max(before)}
    assert len(made) > 4
    assert made == {number: (0, 2)[number % 2] for number in made}
    COUNTS["log files where the other would put them"] += len(after)


def test_rocketmq_takes_over_what_a_kill_leaves_in_several_directories(tmp_path: Path) -> None:
    turns = Turns(tmp_path, 2, pool=False)
    # Below the root, so that one copy is an image of everything.
    directories = tuple(turns.options.data_dir / f"log-{number}" for number in range(2))
    turns.options = replace(turns.options, commit_log_dirs=directories)
    store = turns.open()
    turns.sent = some(40)
    put_lists(store, turns.sent)
    while store.should_prepare_next_file():
        store.prepare_next_file()
    image = killed(store, tmp_path / "image")
    assert store.close()
    directories = tuple(image.data_dir / path.name for path in directories)
    turns.options = replace(image, commit_log_dirs=directories)
    turns.apache(some(41))
    turns.reput(some(42))
    assert turns.places() == {number: number % 2 for number in turns.places()}
