from array import array
from typing import Final

from reput_protocol.buffers import Buffer

COLUMNS: Final[tuple[str, ...]]
RECORD: Final[int]
BLANK: Final[int]
INVALID: Final[int]
TRUNCATED: Final[int]

def crc32(data: Buffer, value: int = 0) -> int: ...
def body_fault(stated: int, actual: int) -> str: ...
def checksum_property(value: int) -> bytes: ...
def read_record(
    buffer: Buffer, position: int, end: int, check_crc: bool, check_properties_crc: bool
) -> tuple[int, int, str, tuple[int, int, int, int, int, int, int] | None]: ...
def scan_records(
    buffer: Buffer, start: int, end: int, physical_offset: int = -1
) -> tuple[array[int], int, int, int, str]: ...
def properties_have_any(buffer: Buffer, parts: tuple[bytes, ...]) -> bool: ...
def record_starts(data: Buffer, position: int, end: int) -> array[int]: ...
def checksum_faults(buffer: Buffer, table: array[int] | memoryview, bodies: bool = True) -> list[tuple[int, str]]: ...
def queue_records(
    buffer: Buffer, start: int, end: int, topic: bytes, queue_id: int, queue_offset: int, is_gapless: bool
) -> tuple[array[int], int]: ...
def unit_records(
    buffer: Buffer, base_offset: int, units: array[int] | memoryview, queues: list[tuple[bytes, int]]
) -> tuple[array[int], list[int]]: ...
def follow_records(
    data: Buffer,
    position: int,
    stop: int,
    end: int,
    base_offset: int,
    check_crc: bool,
    found: dict[tuple[bytes, int], array[int]],
) -> tuple[int, int]: ...
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
