"""Files of RocketMQ that this broker does not support: refused, or left alone (table in docs/formats.md).

Refused are files that this broker's work would invalidate: queues, tables or copies of messages that would miss what is
appended here, or keep what recovery removes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from reput_broker.store.base.errors import ForeignFile
from reput_broker.store.base.options import StoreOptions
from reput_broker.store.log.mapped_file import MappedFile
from reput_protocol.codes import MessageSysFlag
from reput_protocol.commands.base import read_json
from reput_protocol.errors import BodyMalformed
from reput_protocol.properties import INNER_MULTI_DISPATCH, INNER_MULTI_QUEUE_OFFSET, INNER_NUM, decode_properties
from reput_protocol.record.layout import sys_flag_at
from reput_protocol.record.scan import Extent as RecordParts
from reput_protocol.record.scan import locate

LMQ_PREFIX = "%LMQ%"
"""Prefix of topics of light message queues (RocketMQ: MixAll.LMQ_PREFIX)."""

_ROCKS_DB = ("consumequeue", "consumequeue_rocksdb", "rocksdbstore")
_FOREIGN_PROPERTY = re.compile(f"(?:{INNER_MULTI_QUEUE_OFFSET}|{INNER_NUM})\x01".encode())


def refuse_foreign_files(data_dir: Path, *, keeps_ext: bool) -> None:
    """Refuse a directory with files that this broker would not maintain.

    Args:
        data_dir: root of the store directory.
        keeps_ext: whether extended queue entries are maintained (`consume_queue_ext`).

    Raises:
        ForeignFile: names the file and what to do. Nothing was changed.
    """
    for directory, reason in _foreign_directories(data_dir, keeps_ext):
        for path in files_below(directory):
            raise ForeignFile(path, reason)
    for directory in [data_dir / name for name in _ROCKS_DB] + _directories_in(data_dir / "config"):
        if (directory / "CURRENT").is_file():
            raise ForeignFile(
                directory / "CURRENT",
                "queues or tables are kept in RocksDB there (storeType=defaultRocksDB, rocksdbCQDoubleWriteEnable), "
                "which this broker does not read; let RocketMQ keep them in files again (storeType=default, JSON "
                f"tables), then remove {directory}",
            )
    epochs = data_dir / "epochFileCheckpoint"
    # Reput keeps the epochs of its log under this name too, but has no identity from a controller.
    if epochs.is_file() and epochs.stat().st_size and (data_dir / "brokerIdentity").is_file():
        raise ForeignFile(
            epochs,
            "the directory is a replica of a controller's group (enableControllerMode), and what is appended here "
            "would contradict the others; take the broker out of its group and remove the file and brokerIdentity",
        )
    for name in ("lmqConsumerOffset.json", "lmqConsumerOffset.json.bak"):
        path = data_dir / "config" / name
        if path.is_file() and _holds_offsets(path):
            raise ForeignFile(
                path,
                "it holds consumer offsets that this broker does not maintain (enableLmq); let the groups commit their "
                "offsets to a RocketMQ with enableLmq=false, then remove the file",
            )


def refuse_unlisted_log(options: StoreOptions) -> None:
    """Refuse a directory with a `commitlog` that the options leave out: its messages would seem lost.

    Raises:
        ForeignFile: names one of its files. Nothing was changed.
    """
    listed = {path.resolve() for path in (*options.log_dirs, *options.read_only_commit_log_dirs)}
    own = options.commit_log_dir
    if own.resolve() not in listed:
        for path in files_below(own):
            raise ForeignFile(
                path,
                "store.commit_log_dirs names other directories; name this one there too, or in "
                "store.read_only_commit_log_dirs, or move its files away",
            )


def refuse_unwritable_end(files: Sequence[MappedFile], end_offset: int) -> None:
    """Refuse a log that ends, or has to be truncated, in a file that cannot be written.

    Raises:
        ForeignFile: names the file. Nothing was changed.
    """
    for file in files:
        if not file.is_writable and file.end_offset > end_offset:
            raise ForeignFile(
                file.path,
                "the log continues in it, but its directory is in fact read-only; make that writable until "
                "the file is full, or move the file into one of store.commit_log_dirs",
            )


def _foreign_directories(root: Path, keeps_ext: bool) -> Iterator[tuple[Path, str]]:
    drain = "drain those topics with RocketMQ and remove"
    for directory in sorted(root.glob("dledger-*")):
        yield (
            directory,
            "it is part of a DLedger log (enableDLegerCommitLog), which this broker does not read; copy the messages "
            f"to a broker with an ordinary commitlog/, then remove {directory}",
        )
    batch = root / "batchconsumequeue"
    yield (batch, f"this broker does not support batch queues (topic attribute queue.type=BatchCQ); {drain} {batch}")
    if not keeps_ext:
        yield (
            root / "consumequeue_ext",
            "queues here have extended entries (enableConsumeQueueExt); "
            "set store.consume_queue_ext = true to maintain them",
        )
    for directory in sorted((root / "consumequeue").glob(f"{LMQ_PREFIX}*")):
        yield directory, f"this broker does not support light message queues (enableLmq); {drain} {directory}"
    compaction = root / "compaction"
    for directory in (compaction / "compactionLog", compaction / "compactionCq"):
        yield (
            directory,
            "this broker does not support compacted topics (topic attribute cleanup.policy=COMPACTION); "
            f"{drain} {compaction}",
        )


def files_below(directory: Path) -> list[Path]:
    """Return every file under a directory; none if it does not exist."""
    return [path for path in sorted(directory.rglob("*")) if path.is_file()] if directory.is_dir() else []


def _directories_in(directory: Path) -> list[Path]:
    return [path for path in sorted(directory.iterdir()) if path.is_dir()] if directory.is_dir() else []


def _holds_offsets(path: Path) -> bool:
    """Whether a table of offsets has an entry; one that cannot be read counts as having one."""
    data = path.read_bytes()
    if not data.strip():
        return False
    try:
        table = read_json(data, loose_bytes_max=len(data))
    except BodyMalformed:
        return True
    return bool(table.get("offsetTable") or table.get("lmqOffsetTable"))


def refuse_foreign_records(files: Sequence[MappedFile], first: int, end_offset: int) -> None:
    """Refuse a log with records that belong to queues which this broker does not maintain.

    Only RocketMQ can have written them: producers cannot set the properties that mark them. They are found by their
    text, in one search through bytes that recovery reads anyway.

    Args:
        first: index of the file to begin with.
        end_offset: end of the valid records.

    Raises:
        ForeignFile: names the file and the record. Nothing was changed.
    """
    for file in files[first:]:
        held = file.hold()
        assert held, "recovery owns the files"
        try:
            with file.slice(0, file.size) as view:
                size = min(file.size, end_offset - file.base_offset)
                found = None if size <= 0 else _foreign_record(view, size)
        finally:
            file.release()
        if found is not None:
            position, what = found
            raise ForeignFile(
                file.path,
                f"the record at log offset {file.base_offset + position} belongs to {what}, which this broker does not "
                "support; continue with RocketMQ in this directory until it has expired, or copy the messages to a "
                "new one",
            )


def _foreign_record(view: memoryview, size: int) -> tuple[int, str] | None:
    """Position of the first such record, and its kind of queue; bodies may contain the text too."""
    position = 0
    parts: RecordParts | None = None
    for match in _FOREIGN_PROPERTY.finditer(view, 0, size):
        while position < size:
            scan, parts = locate(view, position, size, check_crc=False)
            if parts is None or position + scan.size > match.start():
                break
            position += scan.size
        if parts is None or match.start() < parts.properties:
            continue
        properties = decode_properties(view[parts.properties : parts.properties + parts.properties_size])
        if INNER_NUM in properties and sys_flag_at(view, position) & MessageSysFlag.INNER_BATCH:
            return position, "a batch queue (topic attribute queue.type=BatchCQ)"
        if INNER_MULTI_DISPATCH in properties and INNER_MULTI_QUEUE_OFFSET in properties:
            return position, "several queues (enableLmq, enableMultiDispatch)"
    return None
