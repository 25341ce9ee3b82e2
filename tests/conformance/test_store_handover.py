"""One directory, opened alternately by both stores: after an orderly stop, after a kill, without its first files.

Both directions use the store libraries themselves, so that every byte of every record is compared, and also what only
a broker stores: delayed, half and rolled back messages.
"""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance import checks, workload
from conformance.apache import Apache, as_request
from conformance.checks import View
from conformance.counts import COUNTS
from conformance.reput_side import REPUT_WRITES_INDEX, MovingClock, open_store, put_lists, view
from reput_broker.store.base.errors import StoreLocked
from reput_broker.store.message_store import MessageStore
from reput_protocol.codes import BoundaryType
from support.stores import killed

pytestmark = pytest.mark.process

Lists = list[list[workload.Sent]]
FIRST, SECOND, THIRD = 700, 250, 150
DELETED = 5


def delete_first_files(data_dir: Path) -> None:
    """Delete the first files of the log, and the queue files that lead only to them, as retention does."""
    log = sorted((data_dir / "commitlog").iterdir())
    for path in log[:DELETED]:
        path.unlink()
    begin = int(log[DELETED].name)
    for directory in (data_dir / "consumequeue").glob("*/*"):
        for path in sorted(directory.iterdir())[:-1]:
            (last,) = struct.unpack_from(">q", path.read_bytes(), path.stat().st_size - 20)
            if last >= begin:
                break
            path.unlink()
            COUNTS["expired queue files deleted"] += 1


def apache_puts(apache: Apache, lists: Lists, *, done: str = "PUT_OK") -> None:
    """Have RocketMQ store messages, lists of more than one as batches."""
    for together in _runs(lists):
        for line in apache.put(together, batch=len(together) > 1 and together in lists):
            assert line["status"] == done


def _runs(lists: Lists) -> Iterator[list[workload.Sent]]:
    """Batches as they are, and the messages between them put one by one with one request."""
    singles: list[workload.Sent] = []
    for batch in lists:
        if len(batch) == 1:
            singles += batch
            continue
        yield from [singles] if singles else []
        singles = []
        yield batch
    yield from [singles] if singles else []


def same_times(apache: Apache, store: MessageStore, seen: View) -> None:
    """Both find the same messages by time, with either rule."""
    for (topic, queue_id), queue in seen.items():
        times = checks.times_of(queue)
        for boundary in BoundaryType:
            theirs = apache.by_time(topic, queue_id, times, boundary.value.lower())
            ours = [store.offset_by_timestamp(topic, queue_id, time, boundary) for time in times]
            assert ours == theirs, f"{boundary} of queue {queue_id} of {topic}"
            COUNTS["offsets equal by time"] += len(times)


def put_and_check(store: MessageStore, sent: Lists, more: Lists) -> None:
    """Everything is there; more is added, survives the store's own stop, and is there too."""
    checks.holds(view(store), workload.queued(sent))
    put_lists(store, more)
    assert store.close()
    again = open_store(store.options.data_dir)
    checks.holds(view(again), workload.queued(sent + more))
    assert again.close()


@pytest.mark.parametrize(
    "stop",
    [
        pytest.param("clean", marks=pytest.mark.long),
        "killed",
        pytest.param("first files deleted", marks=pytest.mark.long),
    ],
)
def test_apache_takes_over_from_reput_and_hands_back(tmp_path: Path, stop: str) -> None:
    data_dir, copy = tmp_path / "store", tmp_path / "copy"
    sent = [*workload.messages(1, FIRST)]
    store = open_store(data_dir, clock=MovingClock(random.Random(1)))
    put_lists(store, sent)
    if stop == "killed":
        data_dir = killed(store, tmp_path / "killed").data_dir
    assert store.close()
    if stop == "first files deleted":
        delete_first_files(data_dir)
    end = store.max_physical_offset

    shutil.copytree(data_dir, copy)  # what both open is the same, not the one what the other left
    store = open_store(copy)
    ours = view(store)
    checks.holds(ours, workload.queued(sent))
    with Apache("store", data_dir) as apache:
        checks.same(ours, checks.apache_view(apache))
        checks.by_id(apache, ours)
        same_times(apache, store, ours)
        assert store.close()
        with pytest.raises(StoreLocked):
            open_store(data_dir)

        more = [*workload.messages(2, SECOND)]
        apache_puts(apache, more)
        theirs = checks.apache_view(apache)
        checks.holds(theirs, workload.queued(sent + more))
        checks.by_id(apache, theirs)
        checks.by_key(apache, theirs, indexed_from=0 if REPUT_WRITES_INDEX else end)
        if stop == "killed":
            apache.kill()
        else:
            apache.stop()

    store = open_store(data_dir)
    checks.same(view(store), theirs)
    put_and_check(store, sent + more, [*workload.messages(3, THIRD)])


@pytest.mark.parametrize(
    ("stop", "flush_sync"),
    [
        pytest.param("clean", False, marks=pytest.mark.long),
        pytest.param("killed", False, marks=pytest.mark.long),
        pytest.param("killed while it writes", False, marks=pytest.mark.long),
        ("killed while it writes", True),
        pytest.param("first files deleted", False, marks=pytest.mark.long),
    ],
)
def test_reput_takes_over_from_apache_and_hands_back(tmp_path: Path, stop: str, flush_sync: bool) -> None:
    data_dir, copy = tmp_path / "store", tmp_path / "copy"
    sent = [*workload.messages(4, FIRST)]
    store_ip = "::1" if stop == "clean" else "127.0.0.1"
    with Apache("store", data_dir, flush_sync=flush_sync, store_ip=store_ip) as apache:
        apache_puts(apache, sent)
        theirs = checks.apache_view(apache)
        checks.holds(theirs, workload.queued(sent))
        if stop == "killed while it writes":
            singles = [batch[:1] for batch in workload.messages(5, 1500)]
            certain = len(sent) + kill_while_it_writes(apache, singles)
            sent += singles
        elif stop == "killed":
            apache.kill()
        else:
            apache.stop()
    if stop == "first files deleted":
        delete_first_files(data_dir)

    shutil.copytree(data_dir, copy)
    store = open_store(copy)
    ours = view(store)
    if stop == "killed while it writes":
        sent = sent[: kept(ours, sent)]
        assert len(sent) >= certain
    checks.holds(ours, workload.queued(sent))
    with Apache("store", data_dir) as apache:
        checks.same(ours, checks.apache_view(apache))
        same_times(apache, store, ours)
        if stop == "clean":
            apache.stop()
    assert store.close()

    store = open_store(data_dir)
    checks.same(view(store), ours)
    more = [*workload.messages(6, SECOND)]
    put_and_check(store, sent, more)
    with Apache("store", data_dir) as apache:
        theirs = checks.apache_view(apache)
        checks.holds(theirs, workload.queued(sent + more))
        checks.by_id(apache, theirs)
        # What Reput added has no index entries yet; earlier records have.
        if REPUT_WRITES_INDEX:
            checks.by_key(apache, theirs)


def kill_while_it_writes(apache: Apache, lists: Lists) -> int:
    """Have RocketMQ store messages one by one and kill it in between; return how many it had acknowledged."""
    apache.send("put", messages=[as_request(sent) for (sent,) in lists])
    acknowledged = 0
    for line in apache.lines():
        assert line["status"] == "PUT_OK"
        acknowledged += 1
        if acknowledged == len(lists) // 2:
            apache.kill()
            break
    COUNTS["messages acknowledged before a kill"] += acknowledged
    return acknowledged


def kept(ours: View, lists: Lists) -> int:
    """With how many of the lists, from the first on, as many messages are queued as there are."""
    survived = sum(len(queue.records) for queue in ours.values())
    total = count = 0
    for number, batch in enumerate(lists, 1):
        total += sum(message.is_queued for message in batch)
        if total <= survived:
            count = number
    return count


@pytest.mark.long
def test_both_take_turns(tmp_path: Path) -> None:
    """Neither leaves anything behind that the other stumbles over, however often they change."""
    data_dir = tmp_path / "store"
    rng = random.Random(7)
    sent: Lists = []
    for turn in range(8):
        more = [*workload.messages(100 + turn, 60)]
        if turn % 2:
            store = open_store(data_dir)
            checks.holds(view(store), workload.queued(sent))
            put_lists(store, more)
            if rng.random() < 0.5:
                data_dir = killed(store, tmp_path / f"turn-{turn}").data_dir
            assert store.close()
        else:
            with Apache("store", data_dir) as apache:
                if sent:
                    checks.holds(checks.apache_view(apache), workload.queued(sent))
                apache_puts(apache, more)
                if rng.random() < 0.3:
                    apache.stop()
        sent += more
        COUNTS["turns"] += 1


def test_apache_recovers_what_a_kill_of_reput_leaves_at_any_moment(tmp_path: Path) -> None:
    """Also with messages that are not flushed, not dispatched, or whose queue entries have not been synced."""
    rng = random.Random(9)
    store = open_store(tmp_path / "store", clock=MovingClock(rng))
    lists = [*workload.messages(9, 500)]
    moments = sorted(rng.sample(range(100, len(lists)), 5))
    for number, batch in enumerate(lists):
        put_lists(store, [batch], dispatch=rng.random() < 0.05)
        if rng.random() < 0.05:
            store.flush_commit_log()
        if rng.random() < 0.05:
            store.reput_step(20_000)
        if rng.random() < 0.05:
            store.flush_consume_queues()
            store.write_checkpoint()
        if number in moments:
            image = killed(store, tmp_path / f"image-{number}").data_dir
            shutil.copytree(image, copy := tmp_path / f"copy-{number}")
            recovered = open_store(copy)
            ours = view(recovered)
            checks.holds(ours, workload.queued(lists[: number + 1]))
            with Apache("store", image) as apache:
                checks.same(ours, checks.apache_view(apache))
            assert recovered.close()
            COUNTS["kills at any moment recovered alike"] += 1
    assert store.close()
