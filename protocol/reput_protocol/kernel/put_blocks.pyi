from array import array
from collections.abc import Sequence
from typing import Any, TypeAlias

from reput_protocol.buffers import Buffer
from reput_protocol.record.message_id import UniqueIdGenerator

Integers: TypeAlias = Any
"""Something that has integers of 64 bits in its buffer: an array of `array` or of NumPy."""

class Refusal(Exception):
    index: int
    position: int
    reason: str
    is_size: bool

def check_block(
    block: Buffer, magic: int, topic: bytes, queue_id: int, count: int, body_bytes_max: int, properties_bytes_max: int
) -> int: ...
def encode_block(
    bodies: Sequence[Buffer],
    texts: Sequence[bytes],
    flags: Sequence[int],
    magic: int,
    topic: bytes,
    queue_id: int,
    born_timestamp_ms: int,
    id_prefix: bytes,
    id_number: int,
) -> tuple[bytearray, array[int]]: ...
def property_texts(
    rows: int,
    tags: Buffer,
    tag_edges: Integers,
    keys: Buffer,
    key_edges: Integers,
    names: Buffer,
    name_edges: Integers,
    values: Buffer,
    value_edges: Integers,
    is_set: Any,
    entry_edges: Integers,
) -> tuple[bytearray, array[int]]: ...
def encode_rows(
    bodies: Buffer,
    body_edges: Integers,
    texts: Buffer,
    text_edges: Integers,
    flags: Integers,
    born_timestamps_ms: Integers,
    start: int,
    bytes_max: int,
    magic: int,
    topic: bytes,
    queue_id: int,
    ids: UniqueIdGenerator,
) -> tuple[bytearray, int]: ...
def batch_to_block(
    batch: Buffer,
    magic: int,
    topic: bytes,
    queue_id: int,
    sys_flag: int,
    born_timestamp_ms: int,
    count_max: int,
    body_bytes_max: int,
    properties_bytes_max: int,
) -> tuple[bytearray, int] | None: ...
def encode_record(
    body: Buffer,
    properties: bytes,
    magic: int,
    topic: bytes,
    queue_id: int,
    flag: int,
    queue_offset: int,
    physical_offset: int,
    sys_flag: int,
    born_timestamp_ms: int,
    born_host: bytes,
    store_timestamp_ms: int,
    store_host: bytes,
    reconsume_times: int,
    prepared_transaction_offset: int,
) -> bytearray: ...
