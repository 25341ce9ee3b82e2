"""Check the file `checkpoint`: its length, its times, and the mark."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import NamedTuple

from reput_broker.store.base.checkpoint import (
    CHECKPOINT_BYTES,
    MARK_AT,
    MARK_CRC_AT,
    MARK_END,
    MARK_MAGIC,
    FlushMark,
    StoreCheckpoint,
)
from reput_broker.store.base.errors import ForeignFile
from reput_broker.tools.report import Report
from reput_protocol.kernel.records import crc32

_FIELDS = (
    ("physicMsgTimestamp", 0),
    ("logicsMsgTimestamp", 8),
    ("indexMsgTimestamp", 16),
    ("masterFlushedOffset", 24),
    ("confirmPhyOffset", 32),
)


class LogFacts(NamedTuple):
    """Facts about the log to compare the checkpoint with."""

    end_offset: int
    records: int
    max_store_timestamp_ms: int
    is_damaged: bool


def checkpoint_fields(data: bytes) -> dict[str, int]:
    """Return the five fields with RocketMQ's names."""
    return {name: int.from_bytes(data[at : at + 8], "big", signed=True) for name, at in _FIELDS}


def valid_mark(root: Path) -> FlushMark | None:
    """Return the mark if there is a valid one."""
    return _loaded(root).mark


def _loaded(root: Path) -> StoreCheckpoint:
    checkpoint = StoreCheckpoint(root / "checkpoint")
    with contextlib.suppress(ForeignFile):
        checkpoint.load()
    return checkpoint


def index_time(root: Path) -> int:
    """Return the store time up to which full index files are on disk (RocketMQ: indexMsgTimestamp)."""
    return _loaded(root).index_msg_timestamp_ms


def checkpoint_min_time(root: Path) -> int:
    """Return the store time up to which log and queues are on disk (StoreCheckpoint.getMinTimestamp)."""
    return _loaded(root).min_timestamp_ms


def verify_checkpoint(root: Path, log: LogFacts, report: Report) -> None:
    """Compare the checkpoint with the log."""
    path = root / "checkpoint"
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        if log.records:
            report.note("there is no checkpoint: the next start checks the whole log")
        return
    if len(data) != CHECKPOINT_BYTES:
        report.fault(
            "checkpoint",
            path,
            min(len(data), CHECKPOINT_BYTES),
            f"it has {len(data)} bytes and must have {CHECKPOINT_BYTES}",
        )
        return
    tail = data[MARK_END:].lstrip(b"\0")
    if tail:
        report.fault("checkpoint", path, CHECKPOINT_BYTES - len(tail), "unused bytes are not zero")
    has_mark = any(data[MARK_AT:MARK_END])
    mark = valid_mark(root)
    if has_mark and mark is None:
        data = _explain_void_mark(root, path, data, report)
    if mark is not None and mark.flushed_offset > log.end_offset and not log.is_damaged:
        report.fault(
            "checkpoint",
            path,
            MARK_AT + 8,
            f"the log had been flushed up to offset {mark.flushed_offset}, but its records end at {log.end_offset}",
        )
    for name, at in _FIELDS:
        value = int.from_bytes(data[at : at + 8], "big", signed=True)
        is_time = name.endswith("Timestamp")
        limit = log.max_store_timestamp_ms if is_time else log.end_offset
        if value < 0:
            report.fault("checkpoint", path, at, f"{name} is {value}")
        elif log.records and value > limit and name != "masterFlushedOffset" and not log.is_damaged:
            what = "the last record was stored at" if is_time else "the log ends at"
            report.fault("checkpoint", path, at, f"{name} is {value}, but {what} {limit}")


def _explain_void_mark(root: Path, path: Path, data: bytes, report: Report) -> bytes:
    """Report an invalid checksum of the mark: damage, or another broker's work.

    Returns the bytes with a single wrong bit corrected, whose consequences are then not reported.
    """
    covered = bytearray(data[:MARK_END])
    for position in range(MARK_END):
        for bit in range(8):
            covered[position] ^= 1 << bit
            if covered[MARK_AT : MARK_AT + 8] == MARK_MAGIC and crc32(covered[:MARK_CRC_AT]) == int.from_bytes(
                covered[MARK_CRC_AT:]
            ):
                report.fault(
                    "checkpoint", path, position, f"bit {bit} of this byte is wrong: with it the mark's checksum holds"
                )
                return bytes(covered) + data[MARK_END:]
            covered[position] ^= 1 << bit
    # RocketMQ changes the fields before the mark but not the mark. It always leaves `abort.bak`,
    # too.
    if data[MARK_AT : MARK_AT + 8] == MARK_MAGIC and (root / "abort.bak").exists():
        report.note(
            "the mark of this broker is void, as RocketMQ has worked here since: the next start checks the whole log"
        )
    else:
        report.fault("checkpoint", path, MARK_AT, "the mark's checksum does not match the fields that it covers")
    return data
