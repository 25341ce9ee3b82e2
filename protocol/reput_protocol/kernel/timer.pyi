from array import array

from reput_protocol.buffers import Buffer

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
