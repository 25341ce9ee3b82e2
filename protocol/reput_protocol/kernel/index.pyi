from array import array
from mmap import mmap

from reput_protocol.buffers import Buffer

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
def seconds_ascend(file: Buffer, slots: int, entries: int, start: int, stop: int) -> bool: ...
def fitting_slots(
    file: Buffer | mmap, first: int, stop: int, step: int, entries: int, begin_offset: int, end_offset: int
) -> int: ...
def index_chains(
    file: Buffer | mmap, slots: int, entries: int, faults_max: int
) -> tuple[bytearray, int, list[int], list[tuple[int, int, int]]]: ...
def are_entries_of(entries: Buffer, keys: array[int], start: int) -> bool: ...
def wrong_seconds(entries: Buffer, keys: array[int], start: int, begin_ms: int) -> list[tuple[int, int, int]]: ...
