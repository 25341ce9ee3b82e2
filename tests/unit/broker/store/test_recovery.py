"""A store opened again: after an orderly stop, after a kill, after a power cut, after damage."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from reput_broker.store.base.errors import ForeignFile, StoreDamaged, StoreLocked
from reput_broker.store.base.options import StoreOptions
from reput_broker.store.message_store import MessageStore
from reput_protocol.record.message_id import Host
from reput_protocol.record.record import Record
from support.stores import (
    FakeClock,
    bodies,
    dispatch_all,
    flip_bit,
    killed,
    opened,
    put,
    read_queue,
    small_options,
    tree,
)


def filled(data_dir: Path, count: int = 30, size: int = 400) -> MessageStore:
    """A store with some files and two queues, everything flushed and dispatched."""
    store = opened(small_options(data_dir))
    for number in range(count):
        put(store, b"%03d" % number + bytes(size), queue_id=number % 2, tag="a")
    dispatch_all(store)
    return store


def expected(count: int = 30, size: int = 400) -> list[list[bytes]]:
    return [[b"%03d" % number + bytes(size) for number in range(queue, count, 2)] for queue in (0, 1)]


def check_whole(options: StoreOptions) -> MessageStore:
    store = opened(options)
    assert [bodies(store, "T", queue) for queue in (0, 1)] == expected()
    return store


def test_an_orderly_stop_leaves_nothing_to_do(tmp_path: Path) -> None:
    store = filled(tmp_path)
    assert store.close()
    assert not (tmp_path / "abort").exists()
    before = tree(tmp_path)
    store = MessageStore(store.options, clock_ms=FakeClock())
    report = store.open()
    assert (report.kind, report.truncated_bytes, report.dispatched) == ("clean", 0, 0)
    assert report.checked_from > 0, "only the last file is read"
    assert (tmp_path / "abort").read_text() == str(os.getpid())
    assert [bodies(store, "T", queue) for queue in (0, 1)] == expected()
    assert store.close()
    assert tree(tmp_path) | {"checkpoint": b""} == before | {"checkpoint": b""}


def test_an_empty_directory(tmp_path: Path) -> None:
    store = MessageStore(small_options(tmp_path / "a" / "b"), clock_ms=FakeClock())
    assert store.open().kind == "empty"
    assert store.close()
    assert store.open().kind == "empty"
    put(store, b"x")
    assert store.close()
    assert store.open().kind == "clean"
    assert bodies(store) == [b"x"]


def test_a_start_that_has_much_to_check_says_so_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled(tmp_path / "live")
    store.write_checkpoint()
    end = store.max_physical_offset
    image = killed(store, tmp_path / "image")
    store.close()
    said: list[dict[str, object]] = []
    options = replace(image, on_event=lambda event, facts: said.append({"event": event, **facts}))
    live = opened(options)
    assert "recovering" not in [line["event"] for line in said], "little is checked at once"
    image = killed(live, tmp_path / "again")
    live.close()
    monkeypatch.setattr("reput_broker.store.opening.judgement.CHECK_WORTH_SAYING_BYTES", 1)
    said.clear()
    opened(replace(options, data_dir=image.data_dir)).close()
    line = said[0]
    begin = int(str(line["from_offset"]))
    assert (line["event"], line["kind"], line["to_offset"]) == ("recovering", "abnormal", end)
    assert line["bytes_to_check"] == end - begin > 0
    assert line["path"] == str(image.data_dir / "commitlog" / f"{begin:020d}")


def test_a_killed_process_loses_nothing(tmp_path: Path) -> None:
    store = filled(tmp_path / "live", 20)
    for number in range(20, 30):
        put(store, b"%03d" % number + bytes(400), queue_id=number % 2, tag="a")
    options = killed(store, tmp_path / "image")
    store = MessageStore(options, clock_ms=FakeClock())
    report = store.open()
    assert (report.kind, report.truncated_bytes) == ("abnormal", 0)
    assert store.flushed_offset == store.max_physical_offset == report.end_offset
    assert [bodies(store, "T", queue) for queue in (0, 1)] == expected()
    store.close()
    check_whole(options)


def test_a_second_broker_is_refused(tmp_path: Path) -> None:
    store = filled(tmp_path)
    with pytest.raises(StoreLocked) as caught:
        opened(store.options)
    assert caught.value.pid == os.getpid()
    assert store.close()
    assert opened(store.options).close()


@pytest.mark.parametrize("unpublished", [True, False])
def test_every_possible_torn_tail_is_cut(tmp_path: Path, unpublished: bool) -> None:
    """The last record is cut at every byte: in a kill its head is missing, in a power cut its end."""
    live = opened(small_options(tmp_path / "live"))
    for number in range(3):
        put(live, b"%d" % number * 20)
    dispatch_all(live)
    last = put(live, b"last" * 8)
    assert last.end_offset - last.physical_offset < 200
    for kept in range(last.end_offset - last.physical_offset):
        options = killed(live, tmp_path / "image")
        path = options.commit_log_dir / f"{0:020d}"
        data = bytearray(path.read_bytes())
        if unpublished:
            data[last.physical_offset : last.physical_offset + 8] = bytes(8)
            data[last.physical_offset + 8 + kept : last.end_offset] = bytes(
                max(0, last.end_offset - last.physical_offset - 8 - kept)
            )
        else:
            data[last.physical_offset + kept : last.end_offset] = bytes(last.end_offset - last.physical_offset - kept)
        path.write_bytes(data)
        tail = bytes(data[last.physical_offset :]).rstrip(b"\0")
        if (
            not unpublished
            and data[: last.end_offset] == (live.options.commit_log_dir / path.name).read_bytes()[: last.end_offset]
        ):
            shutil.rmtree(options.data_dir)
            continue  # the truncated bytes were zeros
        store = MessageStore(options, clock_ms=FakeClock())
        report = store.open()
        assert report.end_offset == last.physical_offset
        assert report.truncated_bytes == len(tail)
        assert not any(path.read_bytes()[last.physical_offset :])
        assert bodies(store) == [b"%d" % number * 20 for number in range(3)]
        assert put(store, b"again").queue_offset == 3
        assert store.close()
        store = MessageStore(options, clock_ms=FakeClock())
        assert store.open().truncated_bytes == 0
        assert bodies(store)[3:] == [b"again"]
        store.close()
        shutil.rmtree(options.data_dir)


@pytest.mark.parametrize("orderly", [True, False])
def test_a_flipped_bit_below_the_flushed_offset_refuses_the_start(tmp_path: Path, orderly: bool) -> None:
    """Every byte of a record counts that a check covers; nothing in the directory is changed by the refusal."""
    live = filled(tmp_path / "live", 8)  # one file
    if orderly:
        live.close()
    positions = [
        *range(16),  # size, magic, checksum, queue id's upper bytes
        *range(28, 36),  # physical offset
        *range(84, 88),  # body size
        *range(88, 100),  # body
        88 + 403,  # topic size
    ]
    damaged = 2 * 505
    record = (live.options.commit_log_dir / f"{0:020d}").read_bytes()
    damaged = int.from_bytes(record[:4], "big") * 2
    for position in positions:
        if 13 <= position < 16:
            continue  # a smaller queue id is still a queue id
        options = killed(live, tmp_path / "image")
        path = options.commit_log_dir / f"{0:020d}"
        flip_bit(path, damaged + position, 7 if position < 16 else 3)
        before = tree(options.data_dir)
        with pytest.raises(StoreDamaged) as caught:
            opened(options)
        assert (caught.value.file, caught.value.position) == (path, damaged)
        assert "reput store repair" in str(caught.value)
        assert tree(options.data_dir) == before
        assert (options.data_dir / "abort").exists() is not orderly
        shutil.rmtree(options.data_dir)


def test_a_refused_start_frees_the_lock(tmp_path: Path) -> None:
    live = filled(tmp_path / "live", 8)
    options = killed(live, tmp_path / "image")
    path = options.commit_log_dir / f"{0:020d}"
    flip_bit(path, 700)
    store = MessageStore(options, clock_ms=FakeClock())
    with pytest.raises(StoreDamaged):
        store.open()
    flip_bit(path, 700)
    assert store.open().kind == "abnormal"


def test_damage_behind_the_flushed_offset_is_a_torn_tail(tmp_path: Path) -> None:
    """After a power cut pages are missing in any order: sound records may follow one that is not."""
    live = filled(tmp_path / "live", 4)
    flushed = live.flushed_offset
    for number in range(4, 12):
        put(live, b"%03d" % number + bytes(400), tag="a")
    options = killed(live, tmp_path / "image")
    flip_bit(options.commit_log_dir / f"{0:020d}", flushed + 300)
    store = MessageStore(options, clock_ms=FakeClock())
    report = store.open()
    assert report.end_offset == flushed
    assert report.truncated_bytes == live.max_physical_offset - flushed - (4096 - blank_start(live))
    assert len(list(options.commit_log_dir.iterdir())) == 1, "the later file is gone"
    assert sum(len(bodies(store, "T", queue)) for queue in (0, 1)) == 4


def blank_start(store: MessageStore) -> int:
    """How far the first file is filled, its blank record's 8 bytes included."""
    data = (store.options.commit_log_dir / f"{0:020d}").read_bytes()
    return len(data.rstrip(b"\0"))


@pytest.mark.parametrize("lost_from", ["topic", "properties"])
def test_a_lost_page_behind_the_body_is_noticed(tmp_path: Path, lost_from: str) -> None:
    """The body's checksum holds, but the page with topic or properties never reached the disk."""
    live = opened(small_options(tmp_path / "live", commit_log_file_size=8192))
    put(live, b"first")
    dispatch_all(live)
    start = live.max_physical_offset
    properties = {"long": "x" * 100}
    body = bytes(4096 - start - 88 - 1 - (1 if lost_from == "properties" else 0) - 50)
    if lost_from == "topic":
        body += bytes(50)
    last = put(live, body, properties=properties)
    assert last.end_offset > 4096
    options = killed(live, tmp_path / "image")
    path = options.commit_log_dir / f"{0:020d}"
    path.write_bytes(path.read_bytes()[:4096].ljust(8192, b"\0"))
    store = MessageStore(options, clock_ms=FakeClock())
    assert store.open().end_offset == start
    assert bodies(store) == [b"first"]


def test_a_missing_file_of_the_log_is_damage(tmp_path: Path) -> None:
    live = filled(tmp_path / "live")
    live.close()
    options = killed(live, tmp_path / "image")
    last = max(options.commit_log_dir.iterdir())
    last.unlink()
    with pytest.raises(StoreDamaged) as caught:
        opened(options)
    assert caught.value.file == last


def test_a_log_that_vanished_is_not_taken_for_an_empty_store(tmp_path: Path) -> None:
    live = filled(tmp_path / "live")
    live.close()
    options = killed(live, tmp_path / "image")
    shutil.rmtree(options.commit_log_dir)
    before = tree(options.data_dir)
    with pytest.raises(StoreDamaged, match="there is no log"):
        opened(options)
    shutil.rmtree(options.consume_queue_dir)
    with pytest.raises(StoreDamaged, match="had been flushed up to"):
        opened(options)
    assert before.keys() >= tree(options.data_dir).keys()


def test_a_blank_record_with_another_size_is_not_believed(tmp_path: Path) -> None:
    live = filled(tmp_path / "live")
    options = killed(live, tmp_path / "image")
    path = options.commit_log_dir / f"{0:020d}"
    data = path.read_bytes()
    at = data.rindex(bytes.fromhex("cbd43194")) - 4
    os.remove(options.data_dir / "checkpoint")
    flip_bit(path, at + 3)
    with pytest.raises(StoreDamaged, match="blank record"):
        opened(options)


@pytest.mark.parametrize("size", [400, 1200])
def test_a_kill_while_rolling(tmp_path: Path, size: int) -> None:
    """Blank record written, next file there or not, empty: the log ends before the blank record or in the new file."""
    live = filled(tmp_path / "live", 8)
    at = live.max_physical_offset
    remaining = 4096 - at
    for with_file in (False, True):
        options = killed(live, tmp_path / f"image-{with_file}")
        path = options.commit_log_dir / f"{0:020d}"
        data = bytearray(path.read_bytes())
        data[at : at + 8] = remaining.to_bytes(4, "big") + bytes.fromhex("cbd43194")
        path.write_bytes(data)
        if with_file:
            (options.commit_log_dir / f"{4096:020d}").write_bytes(bytes(4096))
        store = MessageStore(options, clock_ms=FakeClock())
        report = store.open()
        assert report.end_offset == (4096 if with_file else at)
        assert report.truncated_bytes == 0
        body = bytes(size)
        result = put(store, body, queue_id=0)
        assert result.queue_offset == 4
        dispatch_all(store)
        assert bodies(store)[-1] == body
        again = killed(store, tmp_path / f"again-{with_file}")
        assert bodies(opened(again))[-1] == body


def test_a_prepared_file_that_was_never_used_is_removed(tmp_path: Path) -> None:
    live = filled(tmp_path / "live", 8)
    live.prepare_next_file()
    options = killed(live, tmp_path / "image")
    assert len(list(options.commit_log_dir.iterdir())) == 2
    store = opened(options)
    assert len(list(options.commit_log_dir.iterdir())) == 1
    assert sum(len(bodies(store, "T", queue)) for queue in (0, 1)) == 8


def interrupted(store: MessageStore, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start the store, dying at the named call."""

    class Killed(BaseException):
        pass

    def die(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(step, die)
        with pytest.raises(Killed):
            store.open()


STEPS = [
    "reput_broker.store.log.mapped_file_queue.MappedFileQueue.truncate_dirty_files",
    "reput_broker.store.log.mapped_file.MappedFile.zero_tail",
    "reput_broker.store.log.mapped_file_queue.MappedFileQueue.flush",
    "reput_broker.store.queue.table.ConsumeQueueTable.recover",
    "reput_broker.store.queue.table.ConsumeQueueTable.truncate_dirty",
    "reput_broker.store.queue.consume_queue.ConsumeQueue.put_batch",
    "reput_broker.store.queue.table.ConsumeQueueTable.flush",
    "reput_broker.store.base.checkpoint.StoreCheckpoint.flush",
]


@pytest.mark.parametrize("step", STEPS)
def test_a_kill_during_recovery_changes_nothing_for_the_next(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = filled(tmp_path / "live", 30)
    last = put(live, b"torn" * 100)
    options = killed(live, tmp_path / "image")
    path = options.commit_log_dir / f"{last.physical_offset // 4096 * 4096:020d}"
    flip_bit(path, last.physical_offset % 4096 + 200)
    os.remove(options.data_dir / "checkpoint")
    for _ in range(2):
        interrupted(MessageStore(options, clock_ms=FakeClock()), step, monkeypatch)
        options = replace(options, data_dir=Path(shutil.copytree(options.data_dir, f"{options.data_dir}-")))
    store = MessageStore(options, clock_ms=FakeClock())
    report = store.open()
    assert report.kind == "abnormal"
    assert report.end_offset == last.physical_offset
    assert [bodies(store, "T", queue) for queue in (0, 1)] == expected()


def spoil_nothing(_: StoreOptions) -> None:
    """Leave everything as it is."""


def remove_queues(options: StoreOptions) -> None:
    shutil.rmtree(options.consume_queue_dir)


def remove_one_queue(options: StoreOptions) -> None:
    shutil.rmtree(options.consume_queue_dir / "T" / "1")


def remove_checkpoint(options: StoreOptions) -> None:
    (options.data_dir / "checkpoint").unlink()


def cut_a_queue_short(options: StoreOptions) -> None:
    """The queue lacks its last six entries: more than the last file of the log holds."""
    queue = options.consume_queue_dir / "T" / "1"
    (queue / f"{200:020d}").unlink()
    path = queue / f"{0:020d}"
    path.write_bytes(path.read_bytes()[: 9 * 20].ljust(200, b"\0"))


def rocketmq_worked_here(options: StoreOptions) -> None:
    """Another broker changed the checkpoint: our mark is void."""
    path = options.data_dir / "checkpoint"
    data = bytearray(path.read_bytes())
    data[7] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("orderly", [True, False])
@pytest.mark.parametrize(
    "spoil",
    [spoil_nothing, remove_queues, remove_one_queue, remove_checkpoint, cut_a_queue_short, rocketmq_worked_here],
)
@pytest.mark.parametrize("void_mark", [False, True])
def test_queues_are_completed_from_the_log(
    tmp_path: Path, orderly: bool, spoil: Callable[[StoreOptions], None], void_mark: bool
) -> None:
    """RocketMQ loses messages of a queue that lags behind at an orderly stop; here the log decides."""
    live = filled(tmp_path / "live")
    if orderly:
        live.close()
    options = killed(live, tmp_path / "image")
    spoil(options)
    if void_mark and spoil is not remove_checkpoint:
        rocketmq_worked_here(options)
    assert check_whole(options).close()
    assert put(check_whole(options), b"next", queue_id=1).queue_offset == 15


def test_a_lagging_clean_queue_gets_its_first_missing_entry(tmp_path: Path) -> None:
    """The store that RocketMQ spoils: q1 lacks its last two entries, q0 is complete, `abort` is gone."""
    store = opened(small_options(tmp_path))
    for number in range(30):
        put(store, b"q0", queue_id=0)
        put(store, b"q1-%d" % number, queue_id=1)
    dispatch_all(store)
    store.close()
    (tmp_path / "checkpoint").unlink()
    path = tmp_path / "consumequeue" / "T" / "1" / f"{400:020d}"
    path.write_bytes(path.read_bytes()[: 8 * 20].ljust(200, b"\0"))
    store = opened(store.options)
    assert bodies(store, "T", 1) == [b"q1-%d" % number for number in range(30)]
    assert put(store, b"x", queue_id=1).queue_offset == 30


def test_a_log_whose_beginning_has_expired(tmp_path: Path) -> None:
    """The first record left is number 6 of its queue: the queue begins with pre-blank entries and a minimum of 6."""
    live = filled(tmp_path / "live")
    live.close()
    options = killed(live, tmp_path / "image")
    (options.commit_log_dir / f"{0:020d}").unlink()
    remove_queues(options)
    (options.data_dir / "checkpoint").unlink()
    store = opened(options)
    first = [record.body[:3] for record in read_queue(store, "T", 0)]
    assert first == [b"%03d" % number for number in range(8, 30, 2)]
    assert store.min_offset_in_queue("T", 0) == 4
    assert store.max_offset_in_queue("T", 0) == 15
    store.close()
    store = opened(options)
    assert store.min_offset_in_queue("T", 0) == 4


def test_damage_in_a_directory_without_our_mark(tmp_path: Path) -> None:
    """RocketMQ's checkpoint tells how far it had flushed: a record before that time is not a torn tail."""
    clock = FakeClock()
    live = opened(small_options(tmp_path / "live"), clock)
    for number in range(6):
        put(live, b"%03d" % number + bytes(400))
        clock.now_ms += 1000
    dispatch_all(live)
    live.flush_consume_queues()
    live.write_checkpoint()
    options = killed(live, tmp_path / "image")
    checkpoint = options.data_dir / "checkpoint"
    checkpoint.write_bytes(checkpoint.read_bytes()[:40].ljust(4096, b"\0"))
    flip_bit(options.commit_log_dir / f"{0:020d}", 700)
    with pytest.raises(StoreDamaged, match="follows at offset"):
        opened(options)
    checkpoint.unlink()
    store = opened(options)
    assert len(bodies(store)) == 1, "nothing says that anything had been flushed, nothing lies in a later file"


def test_a_sound_later_file_means_damage_without_our_mark(tmp_path: Path) -> None:
    live = filled(tmp_path / "live")
    options = killed(live, tmp_path / "image")
    (options.data_dir / "checkpoint").unlink()
    flip_bit(options.commit_log_dir / f"{0:020d}", 700)
    with pytest.raises(StoreDamaged, match="follows at offset"):
        opened(options)


def test_old_bytes_after_a_truncation_do_not_return(tmp_path: Path) -> None:
    """A torn record is cut; the next record ends exactly where an old sound one begins; it must stay dead."""
    live = filled(tmp_path / "live", 4)
    lost = [put(live, b"%03d" % number + bytes(400)) for number in range(4, 7)]
    options = killed(live, tmp_path / "image")
    flip_bit(options.commit_log_dir / f"{0:020d}", lost[0].physical_offset + 300)
    store = opened(options)
    assert put(store, b"new" + bytes(400)).end_offset == lost[1].physical_offset
    again = killed(store, tmp_path / "again")
    store = opened(again)
    assert store.max_physical_offset == lost[1].physical_offset


def test_a_record_from_another_place_is_not_sound(tmp_path: Path) -> None:
    live = filled(tmp_path / "live", 4)
    end = live.flushed_offset
    options = killed(live, tmp_path / "image")
    path = options.commit_log_dir / f"{0:020d}"
    data = bytearray(path.read_bytes())
    size = int.from_bytes(data[:4], "big")
    data[end : end + size] = data[:size]
    path.write_bytes(data)
    store = MessageStore(options, clock_ms=FakeClock())
    report = store.open()
    assert (report.end_offset, report.truncated_bytes) == (end, len(bytes(data[end : end + size]).rstrip(b"\0")))


def test_records_with_ipv6_hosts_version_2_and_checksums_are_walked(tmp_path: Path) -> None:
    store = opened(small_options(tmp_path / "live", record_crc=True))
    topic = "%RETRY%" + "g" * 121
    store.put_record(Record("T", b"a", queue_id=0, born_host=Host("::1", 5)))
    store.put_record(Record(topic, b"b", queue_id=0, born_host=Host("fe80::2", 5)))
    store.put_record(Record("T", b"", queue_id=0, properties=b"TAGS\x01x\x02"))
    options = killed(store, tmp_path / "image")
    store = MessageStore(options, clock_ms=FakeClock())
    assert store.open().records == 3
    assert (bodies(store), bodies(store, topic)) == ([b"a", b""], [b"b"])


def test_a_deleted_topic_stays_deleted(tmp_path: Path) -> None:
    """Whatever recovery reads again, and though the new topic counts from 0."""
    live = filled(tmp_path / "live")
    assert live.delete_topic("T") == 2
    assert live.max_offset_in_queue("T", 0) == 0
    assert put(live, b"new").queue_offset == 0
    for stop in (False, True):
        if stop:
            live.close()
        options = killed(live, tmp_path / f"image-{stop}")
        (options.data_dir / "checkpoint").unlink()
        store = opened(options)
        assert bodies(store) == [b"new"]
        assert store.queues() == [("T", 0)]


def test_a_deletion_is_finished_by_the_next_start(tmp_path: Path) -> None:
    live = filled(tmp_path / "live")
    image = killed(live, tmp_path / "before")
    live.delete_topic("T")
    shutil.copy(live.options.data_dir / "deletedTopics", image.data_dir)
    store = opened(image)
    assert store.queues() == []
    assert not (image.consume_queue_dir / "T").exists()


def test_a_kill_while_a_file_is_created(tmp_path: Path) -> None:
    """What is left is shorter than a file and all zero; without a crash no broker leaves such a file."""
    live = filled(tmp_path / "live", 8)
    options = killed(live, tmp_path / "image")
    unfinished = options.commit_log_dir / f"{4096:020d}"
    unfinished.write_bytes(bytes(1000))
    store = opened(options)
    assert sum(len(bodies(store, "T", queue)) for queue in (0, 1)) == 8
    assert not unfinished.exists()
    live.close()
    options = killed(live, tmp_path / "clean")
    unfinished = options.commit_log_dir / f"{4096:020d}"
    unfinished.write_bytes(bytes(1000))
    with pytest.raises(ForeignFile):
        opened(options)
    assert unfinished.exists()


def test_a_deletion_does_not_reach_beyond_what_a_power_cut_left(tmp_path: Path) -> None:
    """The mark was synced, the records that it covered were not; what is put in their place is not deleted."""
    live = opened(small_options(tmp_path / "live"))
    put(live, bytes(500))
    live.delete_topic("T")
    options = killed(live, tmp_path / "image")
    path = options.commit_log_dir / f"{0:020d}"
    path.write_bytes(bytes(4096))
    store = opened(options)
    put(store, b"new")
    dispatch_all(store)
    assert bodies(store) == [b"new"]


def test_another_file_size_is_refused(tmp_path: Path) -> None:
    filled(tmp_path).close()
    with pytest.raises(ForeignFile):
        opened(small_options(tmp_path, commit_log_file_size=8192))
    assert bodies(opened(small_options(tmp_path))) == expected()[0]


@pytest.mark.parametrize("left", ["no name", "no length"])
def test_queue_files_after_one_lost_by_a_power_cut_are_rebuilt(tmp_path: Path, left: str) -> None:
    """Names and lengths of queue files are synced together, later: those of one may be lost and of the next not."""
    live = filled(tmp_path / "live")
    options = killed(live, tmp_path / "image")
    path = options.consume_queue_dir / "T" / "0" / f"{0:020d}"
    path.unlink() if left == "no name" else path.write_bytes(b"")
    events: list[str] = []
    store = opened(replace(options, on_event=lambda event, _: events.append(event)))
    assert [bodies(store, "T", queue) for queue in (0, 1)] == expected()
    assert ("consume_queue_files_dropped" in events) is (left == "no length")


def test_a_kill_while_files_after_the_truncation_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They go from the newest on: whenever that stops, the files that are left follow each other."""
    live = filled(tmp_path / "live", 4)
    end = live.flushed_offset
    for number in range(4, 40):
        put(live, b"%03d" % number + bytes(400), tag="a")
    options = killed(live, tmp_path / "image")
    assert len(list(options.commit_log_dir.iterdir())) >= 4
    flip_bit(options.commit_log_dir / f"{0:020d}", end + 300)
    store = MessageStore(options, clock_ms=FakeClock())
    interrupted(store, "reput_broker.store.log.mapped_file_queue.sync_directory", monkeypatch)
    names = sorted(int(path.name) for path in options.commit_log_dir.iterdir())
    assert names == list(range(0, 4096 * len(names), 4096))
    assert store.open().end_offset == end


@pytest.mark.parametrize("orderly", [True, False])
@pytest.mark.parametrize(
    ("position", "what"), [(12 + 3, "queue id"), (20 + 7, "queue offset"), (91 + 403 - 2, "topic")]
)
def test_a_record_whose_identity_changed_refuses_the_start(
    tmp_path: Path, orderly: bool, position: int, what: str
) -> None:
    """No checksum covers these fields; RocketMQ would give the queue a hole, or two messages one offset."""
    live = filled(tmp_path / "live", 8)
    live.flush_consume_queues()
    live.write_checkpoint()
    if orderly:
        live.close()
    options = killed(live, tmp_path / "image")
    path = options.commit_log_dir / f"{0:020d}"
    size = int.from_bytes(path.read_bytes()[:4], "big")
    damaged = 7 * size  # the last record: nothing follows it in its queue
    flip_bit(path, damaged + position, 1)
    before = tree(options.data_dir)
    with pytest.raises(StoreDamaged, match="but entry 3 of queue 1 of topic T points at it") as caught:
        opened(options)
    assert (caught.value.file, caught.value.position) == (path, damaged), what
    assert tree(options.data_dir) == before


def test_a_hole_in_a_queue_refuses_the_start_without_any_entries(tmp_path: Path) -> None:
    live = filled(tmp_path / "live", 8)
    options = killed(live, tmp_path / "image")
    remove_queues(options)
    path = options.commit_log_dir / f"{0:020d}"
    size = int.from_bytes(path.read_bytes()[:4], "big")
    flip_bit(path, 4 * size + 27, 4)
    with pytest.raises(StoreDamaged, match=r"message 18 of queue 0 .* the record before it in that queue is message 1"):
        opened(options)


def test_a_lost_queue_without_recent_messages_is_missed_after_a_kill(tmp_path: Path) -> None:
    """Nothing that a recovery reads names it; the checkpoint's count of entries does."""
    live = opened(small_options(tmp_path / "live"))
    put(live, b"seldom", topic="rare")
    for number in range(30):
        put(live, b"%03d" % number + bytes(400))
    dispatch_all(live)
    live.flush_consume_queues()
    live.write_checkpoint()
    options = killed(live, tmp_path / "image")
    shutil.rmtree(options.consume_queue_dir / "rare")
    store = MessageStore(options, clock_ms=FakeClock())
    assert store.open().checked_from > 0
    assert bodies(store, "rare") == [b"seldom"]


def test_an_emptied_queue_is_filled_again_without_our_mark(tmp_path: Path) -> None:
    live = filled(tmp_path / "live")
    live.close()
    options = killed(live, tmp_path / "image")
    remove_checkpoint(options)
    for path in (options.consume_queue_dir / "T" / "1").iterdir():
        path.write_bytes(bytes(200))
    check_whole(options)


@pytest.mark.parametrize("unit", [bytes(20), b"\x7f" * 20, b"\xff" * 20, struct.pack(">qiq", 4000, 400, 0)])
def test_an_entry_that_points_nowhere_is_not_skipped(tmp_path: Path, unit: bytes) -> None:
    """RocketMQ's readers skip to the next file there; a missed message would not be noticed."""
    live = filled(tmp_path / "live", 100, 10)  # a start looks at the last three files of a queue
    live.close()
    path = live.options.consume_queue_dir / "T" / "0" / f"{0:020d}"
    data = path.read_bytes()
    path.write_bytes(data[:60] + unit + data[80:])
    store = opened(live.options)
    with pytest.raises(StoreDamaged, match="entry 3 of queue 0 of topic T points to an impossible place") as caught:
        bodies(store, "T", 0)
    assert (caught.value.file, caught.value.position) == (path, 60)
