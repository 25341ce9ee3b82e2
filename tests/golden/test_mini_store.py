"""A complete miniature store: the CommitLog that RocketMQ was given, and the queues that it made of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import pytest

from reput_broker.store.log.commit_log import CommitLog
from reput_broker.store.message_store import MessageStore
from reput_protocol.record.message_id import Host
from reput_protocol.record.record import Record
from support.stores import T0, FakeClock, opened, small_options

RECORDS_0 = """
00000073daa320a7375337b9000000000000000000000000000000000000000000000000000000000000018bcfe56800
0a00000100009c400000018bcfe568000a00000200002a9f000000000000000000000000000000026d30015400155441
47530154616741024b455953016b31206b3202
0000005edaa320a74054072f000000000000000000000000000000010000000000000073000000000000018bcfe56800
0a00000100009c400000018bcfe56be80a00000200002a9f000000000000000000000000000000026d3101540000
0000009adaa320a7595d56950000000200000000000000000000000000000000000000d1000000000000018bcfe56800
0a00000100009c400000018bcfe56be90a00000200002a9f000000000000000000000000000000026d32135343484544
554c455f544f5049435f58585858002a5245414c5f544f5049430154025245414c5f51494401300244454c4159013302
54414753015461674102
0000006adaa320a72e5a660300000000000000000000000000000000000000000000016b000000040000018bcfe56800
0a00000100009c400000018bcfe571c40a00000200002a9f000000000000000000000000000000026d330154000c554e
49515f4b455901553302
0000002bcbd43194"""
RECORDS_512 = """
00000066daa320a7303ef3a00000000000000000000000000000000000000000000002000000000c0000018bcfe56800
0a00000100009c400000018bcfe571c50a00000200002a9f000000000000000000000000000000026d34015400084b45
5953016b3902
00000070daa320a74739c336000000000000000000000000000000020000000000000266000000080000018bcfe56800
0a00000100009c400000018bcfe577a00a00000200002a9f000000000000000000000000000000026d35015400124b45
5953016b310254414753015461674202
00000071daa320a75e30928c0000000000000000000000000000000300000000000002d6000000000000018bcfe56800
0a00000100009c400000018bcfe577a10a00000200002a9f000000000000000000000000000000026d36015400135441
4753016f726465722d6372656174656402
"""
SHA256 = {
    "commitlog/00000000000000000000": "dc1040e51c12a40b928dbfe0a1dd2ae1c1ba4b9a178ce0eba3c95e99150695ff",
    "commitlog/00000000000000000512": "9b4de8a0cd198c7f167866f2cc1e56ce6e29d7e6f61f2a4f9b93705725a3d75d",
    "consumequeue/T/0/00000000000000000000": "c2e3fa5298c297d1d6a3487bdfcedf505bee8a00f6695f66d0d0b78c2354df67",
    "consumequeue/T/0/00000000000000000060": "47fa82b20b954969a23dad041c00379499116671387051e1cfe6f4b6444023d3",
    "consumequeue/SCHEDULE_TOPIC_XXXX/2/00000000000000000000": (
        "484bbf5d0c44312586b5e6c5c3be34abfc38d742bcc304582f1c63ffc6776aff"
    ),
}
INDEX = [
    "9e234aa508e0dd4309fbce93c54f7307e1d3362845b81fceace379b2857ed6d7",
    "f1cec41866a1156b28503855ef6648a0041612df119bb2f842ff9d6a2ddce681",
]
CONSUME_QUEUES = {path: digest for path, digest in SHA256.items() if path.startswith("consumequeue")}

PARKED = b"REAL_TOPIC\x01T\x02REAL_QID\x010\x02DELAY\x013\x02TAGS\x01TagA\x02"
PUTS: list[tuple[str, int, int, int, bytes]] = [
    ("T", 0, 0, 0, b"TAGS\x01TagA\x02KEYS\x01k1 k2\x02"),
    ("T", 0, 0, 1000, b""),
    ("SCHEDULE_TOPIC_XXXX", 2, 0, 1001, PARKED),
    ("T", 0, 0x4, 2500, b"UNIQ_KEY\x01U3\x02"),
    ("T", 0, 0xC, 2501, b"KEYS\x01k9\x02"),
    ("T", 0, 0x8, 4000, b"KEYS\x01k1\x02TAGS\x01TagB\x02"),
    ("T", 0, 0, 4001, b"TAGS\x01order-created\x02"),
]


def mini_store(data_dir: Path) -> None:
    (data_dir / "commitlog").mkdir(parents=True)
    for name, text in (("00000000000000000000", RECORDS_0), ("00000000000000000512", RECORDS_512)):
        data = bytes.fromhex("".join(text.split()))
        (data_dir / "commitlog" / name).write_bytes(data.ljust(512, b"\0"))
    (data_dir / "abort").write_text("4711")


def digests(data_dir: Path, paths: Iterable[str]) -> dict[str, str]:
    return {path: hashlib.sha256((data_dir / path).read_bytes()).hexdigest() for path in paths}


def open_mini(data_dir: Path, clock: FakeClock | None = None) -> MessageStore:
    sizes = {"commit_log_file_size": 512, "consume_queue_entries": 3, "index_slots": 8, "index_entries": 4}
    return opened(small_options(data_dir, **sizes), clock)


def index_digests(data_dir: Path) -> list[str]:
    """Of the index files in their order; their names are times."""
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted((data_dir / "index").iterdir())]


def test_the_queues_come_out_as_rocketmq_builds_them(tmp_path: Path) -> None:
    mini_store(tmp_path)
    store = open_mini(tmp_path)
    assert digests(tmp_path, CONSUME_QUEUES) == CONSUME_QUEUES
    store.complete_index()
    assert index_digests(tmp_path) == INDEX
    counts = [len(store.query_message("T", key, 64).records) for key in ("k1", "k2", "U3", "k9")]
    assert counts == [2, 1, 1, 0]
    assert store.max_physical_offset == 839
    assert store.max_offset_in_queue("T", 0) == 4
    assert store.max_offset_in_queue("SCHEDULE_TOPIC_XXXX", 2) == 1
    assert store.close()
    assert digests(tmp_path, SHA256) == SHA256
    # logics time and confirm offset as RocketMQ writes them
    checkpoint = (tmp_path / "checkpoint").read_bytes()
    assert int.from_bytes(checkpoint[8:16], "big") == T0 + 4001
    assert int.from_bytes(checkpoint[16:24], "big") == T0 + 2500
    assert index_digests(tmp_path) == INDEX
    assert int.from_bytes(checkpoint[32:40], "big") == 726


def test_our_appends_give_the_same_files(tmp_path: Path) -> None:
    clock = FakeClock()
    store = open_mini(tmp_path, clock)
    for number, (topic, queue_id, sys_flag, after_ms, properties) in enumerate(PUTS):
        clock.now_ms = T0 + after_ms
        record = Record(
            topic=topic,
            body=b"m%d" % number,
            queue_id=queue_id,
            sys_flag=sys_flag,
            born_timestamp_ms=T0,
            born_host=Host("10.0.0.1", 40_000),
            properties=properties,
        )
        store.put_record(record)
    store.flush_commit_log()
    while store.reput_step():
        pass
    store.complete_index()
    assert digests(tmp_path, SHA256) == SHA256
    assert index_digests(tmp_path) == INDEX
    assert store.close()


@pytest.mark.parametrize("prepared_next", [False, True])
def test_the_log_rolls_to_a_file_made_ahead_or_made_now(tmp_path: Path, prepared_next: bool) -> None:
    clock = FakeClock()
    log = CommitLog(small_options(tmp_path, commit_log_file_size=512), clock)
    assert log.needs_new_file(100)
    assert not log.supply.should_prepare
    store = open_mini(tmp_path / "store", clock)
    record = Record("T", b"x" * 200, queue_id=0)
    store.put_record(record)
    assert store.needs_new_file(300)
    if prepared_next:
        assert store.should_prepare_next_file()
        store.prepare_next_file()
        assert not store.should_prepare_next_file()
        assert not store.needs_new_file(300)
    assert store.put_record(record).physical_offset == 512
    assert store.close()
