"""Store directories to examine and to damage: filled through the broker's own classes, closed in order."""

from __future__ import annotations

import hashlib
import shutil
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from reput_broker.store.base.options import StoreOptions
from reput_broker.store.base.results import Block
from reput_broker.tables.offsets import ConsumerOffsetManager
from reput_broker.tables.table_saver import save_now
from reput_broker.tables.topics import TopicConfigManager
from reput_broker.tools.verify import Verification
from reput_protocol.commands.topic import TopicConfig
from reput_protocol.properties import decode_properties
from reput_protocol.record.layout import index_hash
from reput_protocol.record.message import Message
from reput_protocol.record.put_block import encode_put_block
from reput_protocol.record.record import decode_record
from support.stores import BORN_HOST, T0, FakeClock, dispatch_all, opened, small_options

MESSAGES = 60
QUEUES = 2


class Place(NamedTuple):
    """The position of one record."""

    path: Path
    position: int
    size: int
    body: int
    topic: int
    properties: int


def fill(
    root: Path, *, messages: int = MESSAGES, record_crc: bool = False, tags: Sequence[str] = ("tag0", "tag1", "tag2")
) -> StoreOptions:
    """Make a store of several log and queue files with topics, tags, keys and committed offsets."""
    clock = FakeClock()
    options = small_options(root, record_crc=record_crc)
    store = opened(options, clock)
    for number in range(messages):
        clock.now_ms += 700
        message = Message(
            "T",
            b"body-%04d" % number,
            tag=tags[number % len(tags)],
            keys=[f"k{number % 20}"],
            unique_id=f"U{number:06d}",
            properties={"colour": "blue"},
        )
        queue_id = number % QUEUES
        block = bytearray(encode_put_block([message], "T", queue_id, T0))
        if record_crc:  # which the broker adds to records that it composes, and not to blocks
            store.put_record(decode_record(bytes(block)))
        else:
            store.put_one(Block(block, "T", queue_id, 1, BORN_HOST))
    dispatch_all(store)
    assert store.close()
    fill_tables(root, messages)
    return options


def fill_tables(root: Path, messages: int = MESSAGES) -> None:
    """Write topics.json and consumerOffset.json with a journal of one commit, as a broker does."""
    topics = TopicConfigManager(root / "config" / "topics.json", clock_ms=FakeClock())
    topics.load()
    topics.put(TopicConfig(topic_name="T", read_queue_nums=QUEUES, write_queue_nums=QUEUES))
    save_now(topics)
    offsets = ConsumerOffsetManager(root / "config" / "consumerOffset.json", clock_ms=FakeClock())
    offsets.load()
    offsets.commit("billing", "T", 0, min(7, messages // QUEUES))
    save_now(offsets)
    offsets.commit("billing", "T", 1, messages // QUEUES)
    offsets.close()


def examine(root: Path, **arguments: object) -> Verification:
    """Verify a directory."""
    verification = Verification(root, **arguments)  # type: ignore[arg-type]
    verification.run()
    return verification


def named(verification: Verification) -> set[tuple[str, str, int]]:
    """Kind, file below the directory, and byte of every fault."""
    return {
        (fault.kind, str(fault.file.relative_to(verification.root)), fault.position)
        for fault in verification.report.faults
    }


def hashes(root: Path) -> dict[str, tuple[str, int]]:
    """SHA-256 and modification time of every file below a directory, `lock` and `abort` too."""
    return {
        str(path.relative_to(root)): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def copied(source: Path, target: Path) -> Path:
    """A copy to damage."""
    shutil.copytree(source, target)
    return target


def records_of(root: Path) -> list[Place]:
    """Every record of the log, by following sizes."""
    places: list[Place] = []
    for path in sorted((root / "commitlog").iterdir()):
        data = path.read_bytes()
        position = 0
        while position + 8 <= len(data):
            size, magic = struct.unpack_from(">iI", data, position)
            if magic not in (0xDAA320A7, 0xDAA320AB):
                break
            body = position + 88
            topic = body + struct.unpack_from(">i", data, position + 84)[0] + 1
            places.append(Place(path, position, size, body, topic, topic + data[topic - 1] + 2))
            position += size
    return places


def write_index(root: Path, slots: int = 16, entries: int = 24) -> list[Path]:
    """Make index files of a store's log, key by key, as RocketMQ's IndexFile does."""
    directory = root / "index"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    files: list[tuple[Path, bytearray]] = []
    begin = end = begin_offset = end_offset = 0
    count = entries
    path, data = Path(), b""
    for place in records_of(root):
        if place.path != path:
            path = place.path
            data = path.read_bytes()
        offset = int(place.path.name) + place.position
        (stored_at,) = struct.unpack_from(">q", data, place.position + 56)
        (sys_flag,) = struct.unpack_from(">i", data, place.position + 36)
        if sys_flag & 0xC == 0xC:
            continue
        topic = data[place.topic : place.properties - 2].decode()
        properties = decode_properties(data[place.properties : place.position + place.size])
        for key in _keys(topic, properties):
            if count >= entries:
                name = f"{20240101000000000 + len(files)}"
                files.append((directory / name, bytearray(40 + 4 * slots + 20 * entries)))
                begin, begin_offset, count, used = end, end_offset, 1, 0
            file = files[-1][1]
            key_hash = index_hash(key)
            slot_at = 40 + 4 * (key_hash % slots)
            (before,) = struct.unpack_from(">i", file, slot_at)
            seconds = max(0, int((stored_at - begin) / 1000)) if begin > 0 else 0
            struct.pack_into(">iqii", file, 40 + 4 * slots + 20 * count, key_hash, offset, seconds, before)
            struct.pack_into(">i", file, slot_at, count)
            if count <= 1:
                begin, begin_offset = stored_at, offset
            used += before == 0
            count += 1
            end, end_offset = stored_at, offset
            struct.pack_into(">qqqqii", file, 0, begin, end, begin_offset, end_offset, used, count)
    for index_path, file in files:
        index_path.write_bytes(file)
    return [index_path for index_path, _ in files]


def _keys(topic: str, properties: dict[str, str]) -> Iterable[str]:
    tokens: Sequence[str] = properties.get("KEYS", "").split(" ")
    return [f"{topic}#{key}" for key in (properties.get("UNIQ_KEY", ""), *tokens) if key]
