"""Each of RocketMQ's files that this broker does not maintain: refused by name with nothing changed, or left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from reput_broker.store.base.errors import ForeignFile
from reput_broker.store.base.options import StoreOptions
from reput_broker.store.message_store import MessageStore
from reput_broker.tables.topics import why_not_kept
from reput_protocol.codes import MessageSysFlag
from reput_protocol.properties import encode_properties
from reput_protocol.record.record import Record
from support.stores import FakeClock, bodies, dispatch_all, killed, opened, put, small_options, tree

REFUSED = {
    f"batchconsumequeue/B/0/{0:020d}": "BatchCQ",
    f"consumequeue_ext/T/0/{0:020d}": "store.consume_queue_ext",
    f"consumequeue/%LMQ%light/0/{0:020d}": "enableLmq",
    "consumequeue/CURRENT": "RocksDB",
    "consumequeue_rocksdb/CURRENT": "RocksDB",
    "rocksdbstore/CURRENT": "RocksDB",
    "config/topics/CURRENT": "RocksDB",
    "config/consumerOffsets/CURRENT": "RocksDB",
    f"compaction/compactionLog/T/0/{0:020d}": "COMPACTION",
    f"compaction/compactionCq/T/0/{0:020d}": "COMPACTION",
    f"dledger-n0/data/{0:020d}": "enableDLegerCommitLog",
    "epochFileCheckpoint": "enableControllerMode",
    "config/lmqConsumerOffset.json": "enableLmq",
    "config/lmqConsumerOffset.json.bak": "enableLmq",
}
TOLERATED = {
    "abort.bak": b"17",
    "timerwheel": b"w" * 64,
    f"timerlog/{0:020d}": b"t" * 104,
    "config/timercheck": bytes(4096),
    "config/timermetrics": b"{}",
    "config/delayOffset.json": b'{"offsetTable":{3:7}}',
    "config/consumerFilter.json": b"{}",
    "config/consumerOrderInfo.json": b"{}",
    "config/messageRequestMode.json": b"{}",
    "config/topicQueueMapping.json": b"{}",
    "config/transactionMetrics": b"{}",
    "config/subscriptionGroup.json": b'{"subscriptionGroupTable":{}}',
    "config/lmqConsumerOffset.json": b'{"lmqOffsetTable":{},"offsetTable":{}}',
    "config/lmqConsumerOffset.json.bak": b"",
    "compaction/position-checkpoint": b'{"empty":true,"queueOffsetMap":{}}',
    "brokerIdentity": b"DefaultCluster#broker-a#0",
    "epochFileCheckpoint": b"",
    "kvStore/CURRENT": b"MANIFEST-000004\n",
    "transaction/statetable/x": b"s",
    "batchconsumequeue/B/0/": None,
    "consumequeue_ext/T/0/": None,
    "consumequeue/%LMQ%gone/0/": None,
    "dledger-n0/index/": None,
}


def add(root: Path, name: str, content: bytes | None) -> None:
    path = root / name
    if content is None:
        path.mkdir(parents=True)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def filled(root: Path) -> StoreOptions:
    options = small_options(root)
    store = opened(options)
    put(store, b"x")
    assert store.close()
    return options


@pytest.mark.parametrize("name", REFUSED)
def test_files_that_would_become_incomplete_are_refused_by_name(tmp_path: Path, name: str) -> None:
    options = filled(tmp_path)
    add(tmp_path, name, b'{"offsetTable":{"T@%LMQ%g":{0:1}}}')
    if name == "epochFileCheckpoint":
        add(tmp_path, "brokerIdentity", b"DefaultCluster#broker-a#0")
    before = tree(tmp_path)
    with pytest.raises(ForeignFile) as caught:
        opened(options)
    assert caught.value.path == tmp_path / name
    assert REFUSED[name] in str(caught.value)
    assert tree(tmp_path) == before
    assert not (tmp_path / "abort").exists()


def test_harmless_files_are_left_alone(tmp_path: Path) -> None:
    options = filled(tmp_path / "live")
    for name, content in TOLERATED.items():
        add(tmp_path / "live", name, content)
    for crash in (False, True):
        store = opened(options)
        put(store, b"y")
        dispatch_all(store)
        if crash:
            options = killed(store, tmp_path / "image")
            opened(options).close()
        store.close()
        for name, content in TOLERATED.items():
            path = options.data_dir / name
            assert path.is_dir() if content is None else path.read_bytes() == content, name


MULTI = {"INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b", "INNER_MULTI_QUEUE_OFFSET": "4,5"}
BATCH = {"INNER_NUM": "3", "INNER_BASE": "0"}


def with_records(root: Path, *records: Record) -> MessageStore:
    """A store whose log holds what only RocketMQ writes; files of 4096 bytes, so that there are several."""
    store = opened(small_options(root))
    for number in range(10):
        put(store, b"before %d" % number + bytes(600))
    for record in records:
        store.put_record(record)
    put(store, b"after")
    dispatch_all(store)
    return store


@pytest.mark.parametrize("orderly", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize(
    ("properties", "sys_flag", "what"),
    [(MULTI, 0, "enableMultiDispatch"), (BATCH, MessageSysFlag.INNER_BATCH | MessageSysFlag.NEED_UNWRAP, "BatchCQ")],
)
def test_records_that_belong_into_other_queues_are_refused(
    tmp_path: Path, properties: dict[str, str], sys_flag: int, what: str, orderly: bool
) -> None:
    record = Record("T", b"m", sys_flag=sys_flag, properties=encode_properties({"TAGS": "a", **properties}))
    store = with_records(tmp_path / "live", record)
    offset = store.max_physical_offset
    options = killed(store, tmp_path / "image")
    if orderly:
        (tmp_path / "image" / "abort").unlink()
    (tmp_path / "image" / "checkpoint").unlink()  # as if RocketMQ had worked there: our mark is void
    before = tree(tmp_path / "image")
    with pytest.raises(ForeignFile) as caught:
        opened(options)
    assert what in str(caught.value)
    assert caught.value.path.parent == options.commit_log_dir
    assert int(caught.value.path.name) <= offset < int(caught.value.path.name) + 4096
    assert tree(tmp_path / "image") == before


def test_the_same_text_elsewhere_in_a_record_is_nothing_to_refuse(tmp_path: Path) -> None:
    harmless = [
        Record("T", encode_properties({**MULTI, **BATCH})),
        Record("T", b"m", properties=encode_properties({"INNER_MULTI_DISPATCH": "q"})),
        Record("T", b"m", properties=encode_properties({"X": "INNER_NUM", "xINNER_NUM": "1", **BATCH})),
    ]
    store = with_records(tmp_path / "live", *harmless)
    options = killed(store, tmp_path / "image")
    (tmp_path / "image" / "checkpoint").unlink()
    again = MessageStore(options, clock_ms=FakeClock())
    assert again.open().records == 14
    assert bodies(again)[-1] == b"after"


def test_topics_of_kinds_that_are_not_kept_take_no_messages() -> None:
    assert why_not_kept("T", {}) is None
    assert why_not_kept("T", {"queue.type": "SimpleCQ", "cleanup.policy": "DELETE"}) is None
    assert "BatchCQ" in str(why_not_kept("T", {"queue.type": "BatchCQ"}))
    assert "compacts nothing" in str(why_not_kept("T", {"cleanup.policy": "COMPACTION"}))
    assert "light message queues" in str(why_not_kept("%LMQ%x", {}))
