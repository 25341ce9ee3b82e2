"""`reput store verify`, compared with a loop that only checks the CRC of every body.

Prints one line: records and bytes, both speeds, and the ratio (1.0 is as fast as the loop). Medians of several rounds
on a temporary store, read from the page cache.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import statistics
import struct
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

from reput_broker.store.base.options import StoreOptions
from reput_broker.store.base.results import Block
from reput_broker.store.message_store import MessageStore
from reput_broker.tools.verify import Verification
from reput_protocol.record.message import Message
from reput_protocol.record.message_id import Host, born_host_bytes
from reput_protocol.record.put_block import encode_put_block

_HEAD = struct.Struct(">iiI")
_BODY_SIZE = struct.Struct(">i")
_BATCH = 64
_QUEUES = 4


def main() -> None:
    """Fill a store, verify it, and print the line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--size", type=int, default=1024, help="bytes of each body")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="reput-verify-") as directory:
        root = Path(directory)
        _fill(root, arguments.records, arguments.size)
        crc_loop(root)  # into the page cache
        # Alternately, so that other load on the machine affects both.
        rounds = [
            (_seconds(lambda: crc_loop(root)), _seconds(lambda: _verify(root, arguments.records)))
            for _ in range(arguments.rounds)
        ]
    bare = statistics.median(bare for bare, _ in rounds)
    whole = statistics.median(whole for _, whole in rounds)
    row = {
        "measure": "store verify against a loop of body CRCs",
        "records": arguments.records,
        "body_bytes": arguments.size,
        "verify_records_per_s": round(arguments.records / whole),
        "crc_loop_records_per_s": round(arguments.records / bare),
        "ratio": round(statistics.median(bare / whole for bare, whole in rounds), 2),
    }
    print(json.dumps(row) if arguments.json else "  ".join(f"{key}={value}" for key, value in row.items()))


def _fill(root: Path, records: int, size: int) -> None:
    options = StoreOptions(data_dir=root, commit_log_file_size=64 << 20, host=Host("10.0.0.2", 10911))
    clock = iter(range(1_700_000_000_000, 1_800_000_000_000))
    store = MessageStore(options, clock_ms=lambda: next(clock))
    store.open()
    random = os.urandom(size + 4096)
    for start in range(0, records, _BATCH):
        count = min(_BATCH, records - start)
        queue_id = start // _BATCH % _QUEUES
        messages = [
            Message(
                "bench",
                random[(start + n) % 4096 :][:size],
                tag=f"tag{n % 8}",
                keys=[f"order-{start + n:09d}"],
                properties={"region": "eu"},
            )
            for n in range(count)
        ]
        block = bytearray(encode_put_block(messages, "bench", queue_id, 1_700_000_000_000))
        born_host = born_host_bytes("10.0.0.1", 40_000)
        store.put_one(Block(block, "bench", queue_id, count, born_host))
        store.flush_commit_log()
        while store.reput_step():
            pass
    assert store.close()


def crc_loop(root: Path) -> int:
    """Check the CRC of every body of a store; return the number of bodies."""
    records = 0
    for path in sorted((root / "commitlog").iterdir()):
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
            memoryview(mapped) as view,
        ):
            records += _crc_file(view)
    return records


def _crc_file(view: memoryview) -> int:
    position = records = 0
    while position + 88 <= len(view):
        size, magic, crc = _HEAD.unpack_from(view, position)
        if magic != -626_843_481:
            break
        (body_size,) = _BODY_SIZE.unpack_from(view, position + 84)
        assert crc32(view[position + 88 : position + 88 + body_size]) & 0x7FFF_FFFF == crc
        position += size
        records += 1
    return records


def _verify(root: Path, records: int) -> None:
    report = Verification(root).run()
    assert report.is_clean, report.faults
    assert report.figures["records"] == report.figures["units"] == records


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
