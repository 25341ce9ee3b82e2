"""`make bench KIND=store`: the store alone, in this process, compared with plain operations on the same bytes.

Dispatch is compared with a memory copy, opening many files with opening one, key queries with random reads; recovery
reports how much it reads after a kill. Directories are temporary, files are in the page cache, nothing waits for the
disk.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from filled_store import BATCH, TOPIC, blocks, dispatch, fill, key_of, opened, options_for, put, store_of
from reput_cli.bench_clients import host_facts

SIZE = 1024
_PAGE = 4096
Row = dict[str, Any]
Result = TypeVar("Result")


def main() -> None:
    """Run every measurement and print one line each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full number of messages")
    parser.add_argument("--only", choices=sorted(MEASURES), help="one measurement alone")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows: list[Row] = []
    for name, measure in MEASURES.items():
        if arguments.only not in (None, name):
            continue
        with tempfile.TemporaryDirectory(prefix="reput-bench-") as directory:
            row = measure(Path(directory), arguments.rounds, arguments.scale)
        rows.append(row)
        if not arguments.json:
            print("  ".join(f"{key}={value}" for key, value in row.items()), flush=True)
    print(json.dumps({"host": host_facts(), "results": rows}) if arguments.json else host_facts())


def dispatching(root: Path, rounds: int, scale: float) -> Row:
    """Dispatch with two index keys per message, in steps of 1 MiB, compared with copying the same bytes."""
    messages = int(100_000 * scale)
    rates, ratios = [], []
    for number in range(rounds):
        options = options_for(root / str(number))
        store = opened(options)
        for block in blocks(messages, SIZE):
            put(store, *block)
        logged = store.max_physical_offset
        taken, dispatched = _timed(partial(dispatch, store))
        settled, _ = _timed(store.complete_index)
        assert dispatched == messages
        store.close()
        content = b"".join(path.read_bytes() for path in sorted(options.commit_log_dir.iterdir()))[:logged]
        target = bytearray(logged)
        copied = min(_timed(partial(_copy, target, content))[0] for _ in range(3))
        rates.append(messages / (taken + settled))
        ratios.append(copied / (taken + settled))
        shutil.rmtree(options.data_dir)
    return {
        "measure": "dispatch, 2 keys a message, 1 KiB, msg/s",
        "reput": round(statistics.median(rates)),
        "share of a memory copy's speed": f"1/{1 / statistics.median(ratios):.1f}",
    }


def opening(root: Path, rounds: int, scale: float) -> Row:
    """Open a directory after an orderly stop: 100 log files compared with one of the same size."""
    file_size = int((8 << 20) * scale) // _PAGE * _PAGE
    per_file = file_size // (SIZE + 300)
    few, many = (options_for(root / "few", file_size=file_size), options_for(root / "many", file_size=file_size))
    assert fill(few, per_file // 2, SIZE).close()
    assert fill(many, int(per_file * 107.5), SIZE).close()
    files = [len(list(options.commit_log_dir.iterdir())) for options in (few, many)]
    taken: list[tuple[float, float]] = []
    for _ in range(rounds):
        pair = []
        for options in (few, many):
            seconds, store = _timed(partial(opened, options))
            assert store.close()
            pair.append(seconds)
        taken.append((pair[0], pair[1]))
    return {
        "measure": "open after an orderly stop",
        "files": f"{files[1]} against {files[0]} of {file_size >> 20} MiB",
        "s": round(statistics.median(many for _, many in taken), 4),
        "ratio": round(statistics.median(many / few for few, many in taken), 2),
    }


def recovering(root: Path, rounds: int, scale: float) -> Row:
    """Open after a kill, with everything flushed and the checkpoint two files behind."""
    file_size = int((32 << 20) * scale) // _PAGE * _PAGE
    options = options_for(root / "store", file_size=file_size)
    messages = file_size // (SIZE + 300) * 10
    store = fill(options, int(messages * 0.8), SIZE)
    store.flush_commit_log()
    store.flush_consume_queues()
    store.write_checkpoint()
    for block in blocks(int(messages * 0.2) // BATCH * BATCH, SIZE):
        put(store, *block)
    dispatch(store)
    killed = root / "killed"
    taken, shares, speeds = [], [], []
    for _ in range(rounds):
        shutil.copytree(options.data_dir, killed, ignore=shutil.ignore_patterns("lock"))
        again = store_of(options_for(killed, file_size=file_size))
        seconds, report = _timed(again.open)
        assert report.kind == "abnormal"
        assert report.end_offset == store.max_physical_offset
        read = report.end_offset - report.checked_from
        taken.append(seconds)
        shares.append(read / report.end_offset)
        speeds.append(read / seconds / (1 << 20))
        again.close()
        shutil.rmtree(killed)
    store.close()
    return {
        "measure": "open after a kill, checkpoint at 80 %",
        "log MiB": round(report.end_offset / (1 << 20)),
        "s": round(statistics.median(taken), 2),
        "share of the log checked": round(statistics.median(shares), 2),
        "checked MiB/s, dispatch and index with it": round(statistics.median(speeds)),
    }


def querying(root: Path, rounds: int, scale: float) -> Row:
    """Find a message by key among ten million index entries, compared with reading a random page of the log."""
    messages = int(5_000_000 * scale)
    options = options_for(root / "store", file_size=1 << 30)
    store = fill(options, messages, 100)
    store.complete_index()
    chosen = random.Random(1)
    descriptors = [os.open(path, os.O_RDONLY) for path in sorted(options.commit_log_dir.iterdir())]
    last_page = min(store.max_physical_offset, options.commit_log_file_size) // _PAGE - 1
    ratios, medians = [], []
    for _ in range(rounds):
        queries, reads = [], []
        for _ in range(1000):
            number = chosen.randrange(messages)
            seconds, found = _timed(partial(store.query_message, TOPIC, key_of(number), 32))
            assert len(found.records) == 1
            assert found.is_complete
            queries.append(seconds)
            at = chosen.randrange(last_page) * _PAGE
            reads.append(_timed(partial(os.pread, descriptors[0], _PAGE, at))[0])
        medians.append(statistics.median(queries))
        ratios.append(statistics.median(queries) / statistics.median(reads))
    for descriptor in descriptors:
        os.close(descriptor)
    store.close()
    return {
        "measure": f"query by key among {2 * messages} index entries, p50 us",
        "reput": round(statistics.median(medians) * 1e6, 1),
        "random page reads": round(statistics.median(ratios), 1),
    }


def _copy(target: bytearray, source: bytes) -> None:
    memoryview(target)[:] = source  # assigning to the array itself would copy twice


def _timed(work: Callable[[], Result]) -> tuple[float, Result]:
    started = time.perf_counter()
    result = work()
    return time.perf_counter() - started, result


MEASURES: dict[str, Callable[[Path, int, float], Row]] = {
    "dispatch": dispatching,
    "open": opening,
    "recovery": recovering,
    "query": querying,
}


if __name__ == "__main__":
    main()
