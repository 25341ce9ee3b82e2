from array import array
from collections.abc import Callable

from reput_protocol.buffers import Buffer

def queue_units(
    physical_offsets: array[int],
    sizes: array[int],
    tags_codes: array[int],
    queue_offset: int,
    end: int,
    max_physical_offset: int,
) -> tuple[bytearray, array[int], int, int, int, int]: ...
def unit_table(units: Buffer, number: int, owner: int, log_start: int, log_end: int) -> tuple[array[int], bool]: ...
def doubtful_units(table: array[int] | memoryview, log_start: int, log_end: int, size_max: int) -> list[int]: ...
def unit_runs(table: array[int] | memoryview, gap_max: int) -> list[int]: ...
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
