from array import array
from collections.abc import Callable, Mapping, Sequence
from mmap import mmap
from typing import Any, Final, TypeAlias, TypeVar

from reput_protocol.buffers import Buffer
from reput_protocol.message_id import UniqueIdGenerator

Integers: TypeAlias = Any
"""Something that has integers of 64 bits in its buffer: an array of `array` or of NumPy."""

F = TypeVar("F")

FORM: Final[str]
COLUMNS: Final[tuple[str, ...]]
RECORD: Final[int]
BLANK: Final[int]
INVALID: Final[int]
TRUNCATED: Final[int]

class Refusal(Exception):
    index: int
    position: int
    reason: str
    is_size: bool

def crc32(data: Buffer, value: int = 0) -> int: ...
def checksum_property(value: int) -> bytes: ...
def read_record(
    buffer: Buffer, position: int, end: int, check_crc: bool, check_properties_crc: bool
) -> tuple[int, int, str, tuple[int, int, int, int, int, int, int] | None]: ...
def check_block(
    block: Buffer,
    magic: int,
    topic: bytes,
    queue_id: int,
    count: int,
    body_bytes_max: int,
    properties_bytes_max: int,
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
def cut_frames(
    buffer: Buffer,
    start: int,
    total_max: int,
    header_max: int,
    made: Callable[[tuple[int, bytes, memoryview]], F],
) -> tuple[list[F], int, int, tuple[int, int] | None]: ...
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
def text_fields(data: bytes, at: int, fields_max: int) -> dict[str, str]: ...
def typed_fields(
    ext: Mapping[str, Any], integers: tuple[str, ...], flags: tuple[str, ...]
) -> dict[str, Any]: ...
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
def patch_block(
    buffer: bytearray | memoryview,
    start: int,
    stop: int,
    queue_offset: int,
    step: int,
    physical_offset: int,
    store_timestamp_ms: int,
    hosts: bytes,
    is_sealed: bool,
) -> None: ...
def seal_record(buffer: bytearray | memoryview, position: int) -> None: ...
def scan_records(
    buffer: Buffer, start: int, end: int, physical_offset: int = -1
) -> tuple[array[int], int, int, int, str]: ...
def properties_have_any(buffer: Buffer, parts: tuple[bytes, ...]) -> bool: ...
def record_starts(data: Buffer, position: int, end: int) -> array[int]: ...
def checksum_faults(
    buffer: Buffer, table: array[int] | memoryview, bodies: bool = True
) -> list[tuple[int, str]]: ...
def queue_records(
    buffer: Buffer,
    start: int,
    end: int,
    topic: bytes,
    queue_id: int,
    queue_offset: int,
    is_gapless: bool,
) -> tuple[array[int], int]: ...
def unit_records(
    buffer: Buffer,
    base_offset: int,
    units: array[int] | memoryview,
    queues: list[tuple[bytes, int]],
) -> tuple[array[int], list[int]]: ...
def gather(
    buffer: Buffer,
    places: array[int] | memoryview,
    first: int,
    step: int,
    is_text: bool = False,
    replaced: dict[int, bytes] | None = None,
) -> tuple[array[int], bytearray, bytearray, int]: ...
def distinct(
    buffer: Buffer, places: array[int] | memoryview, first: int, step: int
) -> tuple[list[bytes], array[int]]: ...
def property_places(buffer: Buffer, table: array[int] | memoryview, name: bytes) -> array[int]: ...
def property_units(buffer: Buffer, table: array[int] | memoryview) -> tuple[array[int], array[int]]: ...
def java_hash(text: str) -> int: ...
def tags_codes(buffer: Buffer, table: array[int]) -> array[int]: ...
def key_hashes(buffer: Buffer, table: array[int], start: int, stop: int, topic_hash: int) -> array[int]: ...
def runs(buffer: Buffer, table: array[int]) -> list[tuple[bytes, int, int, int, int]]: ...
def columns_of_runs(
    table: array[int], tags_codes: array[int], runs: array[int]
) -> tuple[array[int], array[int], array[int], array[int]]: ...
def follow_records(
    data: Buffer,
    position: int,
    stop: int,
    end: int,
    base_offset: int,
    check_crc: bool,
    found: dict[tuple[bytes, int], array[int]],
) -> tuple[int, int]: ...
def queue_units(
    physical_offsets: array[int],
    sizes: array[int],
    tags_codes: array[int],
    queue_offset: int,
    end: int,
    max_physical_offset: int,
) -> tuple[bytearray, array[int], int, int, int, int]: ...
def insert_keys(
    file: bytearray | memoryview | mmap,
    slots: int,
    entries: int,
    keys: array[int],
    start: int,
    stop: int,
    first: int,
    begin_ms: int,
    before_ms: int,
) -> tuple[int, int, int, bool]: ...
def follow_chain(
    file: Buffer, slots: int, entries: int, number: int, key_hash: int, steps: int
) -> tuple[int, int, int, int]: ...
def fitting_slots(
    file: Buffer | mmap,
    first: int,
    stop: int,
    step: int,
    entries: int,
    begin_offset: int,
    end_offset: int,
) -> int: ...
def index_chains(
    file: Buffer | mmap, slots: int, entries: int, faults_max: int
) -> tuple[bytearray, int, list[int], list[tuple[int, int, int]]]: ...
def are_entries_of(entries: Buffer, keys: array[int], start: int) -> bool: ...
def wrong_seconds(
    entries: Buffer, keys: array[int], start: int, begin_ms: int
) -> list[tuple[int, int, int]]: ...
def seconds_ascend(file: Buffer, slots: int, entries: int, start: int, stop: int) -> bool: ...
def select_units(
    units: Buffer,
    log_start: int,
    log_end: int,
    memory_from: int,
    max_bytes: int,
    memory_messages: int,
    memory_bytes: int,
    disk_messages: int,
    disk_bytes: int,
    codes: array[int] | None,
    accepts: Callable[[int, int], bool | None] | None,
) -> tuple[int, int, int, list[tuple[int, int]], int]: ...
def damaged_unit(units: Buffer, log_end: int, file_size: int) -> int: ...
def files_of_units(units: Buffer, log_start: int, log_end: int, file_size: int) -> list[int]: ...
def valid_units(units: Buffer, place_limit: int) -> int: ...
def address_units(units: Buffer, log_start: int) -> tuple[int, int]: ...
def stray_units(
    units: Buffer, log_start: int, log_end: int, may_be_blank: bool, damaged: array[int]
) -> tuple[list[int], int]: ...
def differing_units(units: Buffer, records: array[int], start: int) -> list[int]: ...
def timer_units(units: Buffer) -> int: ...
def timer_units_ahead(units: Buffer, since_ms: int) -> array[int]: ...
def chain_timer_units(
    wheel: bytearray,
    units: Buffer,
    position: int,
    since_ms: int,
    done: array[int],
    waiting: dict[int, int],
) -> tuple[int, int]: ...
def filled_slots(slots: Buffer, second: int) -> list[int]: ...
