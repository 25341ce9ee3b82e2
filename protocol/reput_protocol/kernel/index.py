"""Index files: entries of 20 bytes in chains from new to old, found by slots for the hash of a key."""

from __future__ import annotations

try:
    import cython
except ImportError:
    from reput_protocol.kernel import uncompiled as cython

if cython.compiled:
    from cython.cimports.reput_protocol.kernel import raw
else:
    from reput_protocol.kernel import raw


@cython.cfunc
@cython.exceptval(-1)
def _entries_at(size: cython.Py_ssize_t, slots: cython.Py_ssize_t, entries: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Return where the entries begin in a file of `size` bytes, which must have room for both numbers."""
    if not 0 < slots <= size // 4 or not 0 <= entries <= size // 20 or size < 40 + 4 * slots + 20 * entries:
        raise ValueError(f"{size} bytes are no index file of {slots} slots and {entries} entries")
    return 40 + 4 * slots


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _slot_at(key_hash: cython.longlong, slots: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Return the position of a hash's slot in a file with at least one slot."""
    slot: cython.Py_ssize_t = key_hash % slots
    return 40 + 4 * (slot if slot >= 0 else slot + slots)


def insert_keys(
    file: cython.uchar[::1],
    slots: cython.Py_ssize_t,
    entries: cython.Py_ssize_t,
    keys: cython.const[cython.longlong][::1],
    start: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
    first: cython.Py_ssize_t,
    begin_ms: cython.longlong,
    before_ms: cython.longlong,
) -> tuple[int, int, int, bool]:
    """Write the keys `[start, stop)` into an index file: for each its entry, then the slot that points to it.

    Args:
        file: the whole file.
        slots, entries: its capacity, including the unused entry 0.
        keys: for each a non-negative hash, a physical offset and a store time.
        first: number of the first entry.
        begin_ms: first store time in the header; entry 1 sets it to its own.
        before_ms: store time of the previous entry.

    Returns:
        How many slots were empty; the earliest and the latest store time; whether store times never descend.
    """
    entries_at: cython.Py_ssize_t = _entries_at(len(file), slots, entries)
    if not (0 <= start < stop and 3 * stop <= len(keys) and 0 < first <= entries - (stop - start)):
        raise ValueError(f"keys {start} to {stop} of {len(keys) // 3} do not fit from entry {first} to {entries}")
    used: cython.Py_ssize_t = 0
    earliest: cython.longlong = keys[3 * start + 2]
    latest: cython.longlong = earliest
    ascending: cython.bint = True
    number: cython.Py_ssize_t = first
    index: cython.Py_ssize_t
    for index in range(3 * start, 3 * stop, 3):
        stored_ms: cython.longlong = keys[index + 2]
        slot: cython.Py_ssize_t = _slot_at(keys[index], slots)
        previous: cython.Py_ssize_t = raw.i32(file, slot)
        if not 0 < previous <= number:
            previous = 0
            used += 1
        seconds: cython.longlong = 0
        if begin_ms > 0 and stored_ms > begin_ms:
            seconds = (stored_ms - begin_ms) // 1000
            if seconds > 0x7FFF_FFFF:
                seconds = 0x7FFF_FFFF
        at: cython.Py_ssize_t = entries_at + 20 * number
        raw.put_i32(file, at, keys[index])
        raw.put_i64(file, at + 4, keys[index + 1])
        raw.put_i32(file, at + 12, seconds)
        raw.put_i32(file, at + 16, previous)
        raw.put_i32(file, slot, number)
        if number == 1:
            begin_ms = stored_ms
        if stored_ms < before_ms:
            ascending = False
        before_ms = stored_ms
        if stored_ms < earliest:
            earliest = stored_ms
        if stored_ms > latest:
            latest = stored_ms
        number += 1
    return used, earliest, latest, ascending


def follow_chain(
    file: cython.const[cython.uchar][::1],
    slots: cython.Py_ssize_t,
    entries: cython.Py_ssize_t,
    number: cython.Py_ssize_t,
    key_hash: cython.longlong,
    steps: cython.Py_ssize_t,
) -> tuple[int, int, int, int]:
    """Follow a chain from entry `number` to the first entry of a hash, for at most `steps` entries.

    Returns:
        That entry's number, or 0; its physical offset and its seconds; the next entry of the chain, or 0.
    """
    entries_at: cython.Py_ssize_t = _entries_at(len(file), slots, entries)
    looked_at: cython.Py_ssize_t = 0
    while 0 < number < entries and looked_at < steps:
        at: cython.Py_ssize_t = entries_at + 20 * number
        looked_at += 1
        following: cython.Py_ssize_t = raw.i32(file, at + 16)
        if not 0 < following < number:  # chains lead only to older entries
            following = 0
        if raw.i32(file, at) == key_hash:
            return number, raw.i64(file, at + 4), raw.i32(file, at + 12), following
        number = following
    return 0, 0, 0, number if 0 < number < entries else 0


def seconds_ascend(
    file: cython.const[cython.uchar][::1],
    slots: cython.Py_ssize_t,
    entries: cython.Py_ssize_t,
    start: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
) -> bool:
    """Return whether the seconds of the entries `[start, stop)` never descend."""
    entries_at: cython.Py_ssize_t = _entries_at(len(file), slots, entries)
    if not start >= 0 or stop > entries:
        raise ValueError(f"entries {start} to {stop} are not in a file of {entries}")
    number: cython.Py_ssize_t
    for number in range(start + 1, stop):
        at: cython.Py_ssize_t = entries_at + 20 * number + 12
        if raw.i32(file, at) < raw.i32(file, at - 20):
            return False
    return True


def fitting_slots(
    file: cython.const[cython.uchar][::1],
    first: cython.Py_ssize_t,
    stop: cython.Py_ssize_t,
    step: cython.Py_ssize_t,
    entries: cython.Py_ssize_t,
    begin_offset: cython.longlong,
    end_offset: cython.longlong,
) -> int:
    """Return the first possible number of slots among the given ones; 0 if none is possible.

    The first and last entry must have the given physical offsets, and a slot must point to the last.

    Args:
        first, stop, step: the numbers to try.
        entries: in use, including entry 0.
    """
    most: cython.Py_ssize_t = len(file) // 4
    if not 2 <= entries <= most or step <= 0:
        raise ValueError(f"{len(file)} bytes have no {entries} entries, and {step} is not a step")
    slots: cython.Py_ssize_t
    for slots in range(max(first, 1), min(stop, most + 1), step):
        entry: cython.Py_ssize_t = 40 + 4 * slots + 20
        last: cython.Py_ssize_t = entry + 20 * (entries - 2)
        if last + 20 > len(file):
            break
        if raw.i64(file, entry + 4) != begin_offset or raw.i64(file, last + 4) != end_offset:
            continue
        key_hash: cython.int = raw.i32(file, last)
        if key_hash >= 0 and raw.i32(file, _slot_at(key_hash, slots)) == entries - 1:
            return slots
    return 0


def index_chains(
    file: cython.const[cython.uchar][::1],
    slots: cython.Py_ssize_t,
    entries: cython.Py_ssize_t,
    faults_max: cython.Py_ssize_t,
) -> tuple[bytearray, int, list[int], list[tuple[int, int, int]]]:
    """Check the entries of an index file in the order of writing.

    Args:
        entries: in use, including entry 0.
        faults_max: maximum faults of each kind to return.

    Returns:
        The slots according to the entries, and the number of used ones; entries with a negative hash; entries with a
            wrong link: number, linked entry, and the previous entry of the slot.
    """
    entries_at: cython.Py_ssize_t = _entries_at(len(file), slots, entries)
    made = bytearray(4 * slots)
    heads: cython.uchar[::1] = made
    used: cython.Py_ssize_t = 0
    negative: list[int] = []
    wrong: list[tuple[int, int, int]] = []
    number: cython.Py_ssize_t
    for number in range(1, entries):
        at: cython.Py_ssize_t = entries_at + 20 * number
        key_hash: cython.int = raw.i32(file, at)
        slot: cython.Py_ssize_t = _slot_at(key_hash, slots) - 40
        before: cython.Py_ssize_t = raw.i32(heads, slot)
        if before == 0:
            used += 1
        if key_hash < 0 and len(negative) < faults_max:
            negative.append(number)
        if raw.i32(file, at + 16) != before and len(wrong) < faults_max:
            wrong.append((number, raw.i32(file, at + 16), before))
        raw.put_i32(heads, slot, number)
    return made, used, negative, wrong


@cython.cfunc
@cython.exceptval(-1)
def _entries_of_keys(
    size: cython.Py_ssize_t, numbers: cython.Py_ssize_t, start: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Return the number of entries in `size` bytes; as many keys of three numbers must follow `start`."""
    rows: cython.Py_ssize_t = size // 20
    if not 0 <= start <= numbers // 3 - rows:
        raise ValueError(f"{rows} entries have no keys from {start} on, of {numbers // 3}")
    return rows


def are_entries_of(
    entries: cython.const[cython.uchar][::1], keys: cython.const[cython.longlong][::1], start: cython.Py_ssize_t
) -> bool:
    """Return whether the entries have hash and physical offset of the keys from `start` on."""
    row: cython.Py_ssize_t
    for row in range(_entries_of_keys(len(entries), len(keys), start)):
        key: cython.Py_ssize_t = 3 * (start + row)
        if raw.i32(entries, 20 * row) != keys[key] or raw.i64(entries, 20 * row + 4) != keys[key + 1]:
            return False
    return True


def wrong_seconds(
    entries: cython.const[cython.uchar][::1],
    keys: cython.const[cython.longlong][::1],
    start: cython.Py_ssize_t,
    begin_ms: cython.longlong,
) -> list[tuple[int, int, int]]:
    """Return the entries whose seconds are not those from `begin_ms` to their key's store time.

    Returns:
        For each the row, its seconds and the right ones.
    """
    wrong = []
    row: cython.Py_ssize_t
    for row in range(_entries_of_keys(len(entries), len(keys), start)):
        seconds: cython.longlong = _seconds_since(begin_ms, keys[3 * (start + row) + 2])
        if raw.i32(entries, 20 * row + 12) != seconds:
            wrong.append((row, raw.i32(entries, 20 * row + 12), seconds))
    return wrong


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _seconds_since(begin_ms: cython.longlong, stored_ms: cython.longlong) -> cython.longlong:
    """Return the whole seconds between two times, from 0 to an entry's maximum."""
    if stored_ms <= begin_ms:
        return 0
    # The difference may exceed a signed number.
    seconds: cython.ulonglong = cython.cast(cython.ulonglong, stored_ms)
    seconds = (seconds - cython.cast(cython.ulonglong, begin_ms)) // 1000
    return 0x7FFF_FFFF if seconds > 0x7FFF_FFFF else cython.cast(cython.longlong, seconds)
