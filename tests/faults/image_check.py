"""Open a directory after a fault with the real store, and compare it with the ledger.

The promises are those of `crash.checker`, whose `Violation` is used here too; the directory is read a second time with
the crash harness's own reader, which shares no code with the store.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from crash import checker
from crash.checker import Violation
from crash.store_reader import read_store
from faults.workload import DELETED_TOPIC, GROUP, QUEUES, Ledger, Queue, abandon, open_tables
from reput_broker.store.base.options import StoreOptions
from reput_broker.store.message_store import MessageStore
from reput_protocol.record.record import decode_record
from support.stores import FakeClock, dispatch_all, put, read_queue

KEYS_ASKED = 8
"""So many of the oldest and of the newest messages are looked for by key."""


def check_image(
    image: Path, options: StoreOptions, ledger: Ledger, at: int, *, killed: bool, now_ms: int, again: bool = False
) -> list[Violation]:
    """Check what a cut after event number `at` left.

    Args:
        image: the directory; it is worked in.
        options: how the store ran.
        ledger: what was promised.
        at: how many events had happened.
        killed: whether only the process ended, so that everything that a put had returned for is there.
        now_ms: the clock's reading.
        again: end the store that was opened with a kill, not in order.
    """
    clock = FakeClock(now_ms)
    options = replace(options, data_dir=image)
    store = MessageStore(options, clock_ms=clock)
    try:
        store.open()
    except Exception as error:
        return [Violation("starts", f"{type(error).__name__}: {error}")]
    try:
        end = store.max_physical_offset
        found = _check_end(store, ledger, at, end, killed)
        found += _check_begin(store, ledger, at)
        served, errors = _read_all(store)
        found += errors
        if not errors:
            found += _check_queues(store, served, ledger, at)
            found += _check_keys(store, ledger)
        found += _check_tables(image, clock, ledger, at, killed)
        if not found:
            found += _check_goes_on(store, again)
    except Exception as error:
        found = [Violation("serves", f"{type(error).__name__}: {error}")]
    finally:
        abandon(store)
    return found


def _check_end(store: MessageStore, ledger: Ledger, at: int, end: int, killed: bool) -> list[Violation]:
    found: list[Violation] = []
    flushed = ledger.flushed_by(at)
    if end < flushed:
        found.append(Violation("flushed", f"the log ends at {end}, but was flushed up to {flushed} by event {at}"))
    if not store.dispatch_is_idle():
        found.append(Violation("queue complete", "records wait to be dispatched after the start"))
    for event, queue, shown_end in ledger.shown:
        if event <= at and shown_end > end:
            found.append(Violation("consumed", f"{queue}: shown up to {shown_end}, the log now ends at {end}"))
            break
    if killed:
        for entry in ledger.entries:
            if entry.put_at <= at and entry.end > end:
                found.append(Violation("page_cache", f"{entry.queue}: the record at {entry.start} is gone"))
                break
        appends = {entry.append for entry in ledger.entries if entry.start < end < entry.end}
        whole = {entry.append for entry in ledger.entries if entry.end <= end}
        partly = {entry.append for entry in ledger.entries if entry.end > end} & whole
        if appends or partly:
            found.append(Violation("whole block", f"the log ends at {end}, within a block"))
    return found


def _check_begin(store: MessageStore, ledger: Ledger, at: int) -> list[Violation]:
    """Files that were deleted stay so, and no other is."""
    begin = store.min_physical_offset
    done = max((expiry.begin for expiry in ledger.expiries if expiry.done_at <= at), default=0)
    begun = max((expiry.begin for expiry in ledger.expiries if expiry.began_at <= at), default=0)
    if done <= begin <= begun:
        return []
    return [Violation("retention", f"the log begins at {begin}, not in [{done}, {begun}]")]


def _read_all(store: MessageStore) -> tuple[dict[Queue, dict[int, bytes]], list[Violation]]:
    """Every body by queue and queue offset; records that are not what their place says are violations."""
    served: dict[Queue, dict[int, bytes]] = {}
    found: list[Violation] = []
    for queue in {*QUEUES, *store.queues()}:
        try:
            served[queue] = {record.queue_offset: record.body for record in read_queue(store, *queue)}
        except Exception as error:
            found.append(Violation("serves", f"{queue}: {type(error).__name__}: {error}"))
    return served, found


def _check_queues(
    store: MessageStore, served: dict[Queue, dict[int, bytes]], ledger: Ledger, at: int
) -> list[Violation]:
    """Every queue holds what the log holds, under its given offsets, and continues where it ended."""
    found: list[Violation] = []
    begin, end = store.min_physical_offset, store.max_physical_offset
    done = max((deletion.before for deletion in ledger.deletions if deletion.done_at <= at), default=0)
    boundaries = {done} | {d.before for d in ledger.deletions if d.began_at <= at and d.before >= done}
    for queue, bodies in served.items():
        entries = [entry for entry in ledger.entries if entry.queue == queue and entry.end <= end]
        ways = [
            [entry for entry in entries if entry.end > boundary]
            for boundary in (boundaries if queue[0] == DELETED_TOPIC else (0,))
        ]
        allowed = [
            ({number: entry.body for number, entry in enumerate(way) if entry.start >= begin}, len(way)) for way in ways
        ]
        stop = store.max_offset_in_queue(*queue)
        start = store.min_offset_in_queue(*queue)
        # A deleted topic whose last record has expired may count from 0 again, or may not.
        if not any(
            bodies == expected and (stop == count or (queue[0] == DELETED_TOPIC and not expected))
            for expected, count in allowed
        ):
            found.append(Violation("byte-equal", _difference(queue, bodies, allowed[0][0], stop)))
        elif start != min(bodies, default=stop):
            found.append(Violation("minimum", f"{queue} begins at {start}, its messages at {list(bodies)[:1]}"))
    return found


def _check_keys(store: MessageStore, ledger: Ledger) -> list[Violation]:
    """A key query misses nothing that is in the log."""
    store.complete_index()
    if store.index_behind_bytes:
        return [Violation("keys", f"the index is {store.index_behind_bytes} bytes behind")]
    begin, end = store.min_physical_offset, store.max_physical_offset
    there = [e for e in ledger.entries if begin <= e.start and e.end <= end and e.queue[0] != DELETED_TOPIC]
    found: list[Violation] = []
    for entry in there[:KEYS_ASKED] + there[KEYS_ASKED:][-KEYS_ASKED:]:
        result = store.query_message(entry.queue[0], entry.key, 4)
        if not result.is_complete or [decode_record(r).body for r in result.records] != [entry.body]:
            found.append(Violation("keys", f"{entry.key} of {entry.queue} at {entry.start} is not found"))
    return found


def _difference(queue: Queue, found: dict[int, bytes], expected: dict[int, bytes], stop: int) -> str:
    missing = sorted(expected.keys() - found.keys())
    surplus = sorted(found.keys() - expected.keys())
    changed = sorted(offset for offset in found.keys() & expected.keys() if found[offset] != expected[offset])
    return (
        f"{queue}: {len(found)} messages instead of {len(expected)}; missing {missing[:3]}, surplus {surplus[:3]}, "
        f"other bytes at {changed[:3]}; it ends at {stop}"
    )


def _check_tables(image: Path, clock: FakeClock, ledger: Ledger, at: int, killed: bool) -> list[Violation]:
    try:
        offsets, topics = open_tables(image, clock)
    except Exception as error:
        return [Violation("tables", f"{type(error).__name__}: {error}")]
    found: list[Violation] = []
    try:
        committed = offsets.query(GROUP, "T", 0) or 0
        promised = [offset for event, offset in ledger.saved_commits if event <= at]
        if killed:
            promised += [offset for _, event, offset in ledger.commits if event <= at]
        sent = [offset for event, _, offset in ledger.commits if event <= at]
        if committed < max(promised, default=0) or committed not in (0, *sent):
            found.append(Violation("offsets", f"committed {max(promised, default=0)}, now {committed}"))
        found += [
            Violation("topics", f"{topic} was created and is gone")
            for event, topic in ledger.saved_topics
            if event <= at and topics.get(topic) is None
        ]
    finally:
        offsets.close()
    return found


def _check_goes_on(store: MessageStore, again: bool) -> list[Violation]:
    """Put one more message, end the store, read the directory with other eyes, and open it once more."""
    next_offset = store.max_offset_in_queue("T", 0)
    begin = store.min_physical_offset
    result = put(store, b"one more", topic="T", queue_id=0)
    if result.queue_offset != next_offset:
        return [Violation("offsets", f"the next message got offset {result.queue_offset}, not {next_offset}")]
    found: list[Violation] = []
    if again:
        dispatch_all(store)
        abandon(store)
    elif not store.close():
        found.append(Violation("stops", f"{store.read_only_reason}"))
    reading = read_store(store.options.data_dir)
    # The deleted topic's records stay in the log, without units, and its queues count from 0 again.
    reading.records = [record for record in reading.records if record.topic != DELETED_TOPIC]
    reading.units = {
        queue: [(number, unit) for number, unit in units if unit.physical_offset >= begin]
        for queue, units in reading.units.items()
        if queue[0] != DELETED_TOPIC
    }
    found += [*checker.check_directory(reading), *checker.check_complete(reading)]
    reopened = MessageStore(store.options, clock_ms=FakeClock())
    try:
        reopened.open()
        body = read_queue(reopened, "T", 0)[-1].body
        if body != b"one more":
            found.append(Violation("flushed", "what was put after recovery is gone after the next start"))
    except Exception as error:
        found.append(Violation("starts", f"the second time: {type(error).__name__}: {error}"))
    finally:
        abandon(reopened)
    return found
