"""What a ConsumeQueue unit says about a record's tag, taken straight from its properties text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from reput_protocol.delay_levels import deliver_time
from reput_protocol.hashing import tags_code
from reput_protocol.properties import find_property_in

_TAGS: Final = b"TAGS\x01"
_CACHE_MAX: Final = 4096
_cache: dict[bytes, int] = {}


def tags_code_in(buffer: bytes | bytearray, start: int, end: int) -> int:
    """Return the tags code of the properties text at `[start, end)` of `buffer`: 0 without a tag."""
    found = buffer.rfind(_TAGS, start, end)  # of several, the last one counts
    if found < 0:
        return 0
    stop = buffer.find(2, found, end)
    tag = bytes(buffer[found + 5 : stop if stop >= 0 else end])
    if not tag or (found != start and buffer[found - 1] != 2):
        # Without a value, or the end of another name: the careful search knows what counts instead.
        tag = find_property_in(buffer, b"TAGS", start, end) or b""
    code = _cache.get(tag)
    return _remember(tag) if code is None else code


def tags_codes_in(buffer: bytes | bytearray, starts: list[int], ends: list[int]) -> list[int]:
    """Return `tags_code_in` of every pair of `starts` and `ends`."""
    rfind = buffer.rfind
    startswith = buffer.startswith
    codes: list[int] = []
    # Messages of one producer tend to have one tag at one place: after the unique id, which is of one size. So the last
    # tag is looked for where it was. Texts of one size and shape do not come here: they are read as tables.
    unit = b"\x02"
    place = unit_size = last_code = 0
    for start, end in zip(starts, ends, strict=True):
        at = start + place
        after = at + unit_size
        if not (unit_size and after <= end and startswith(unit, at) and rfind(_TAGS, after, end) < 0):
            last_code = tags_code_in(buffer, start, end)
            unit, place = _tag_unit(buffer, start, end)
            unit_size = len(unit)
        codes.append(last_code)
    return codes


def _tag_unit(buffer: bytes | bytearray, start: int, end: int) -> tuple[bytes, int]:
    """Return the last tag's unit with the separator before it, and where in the text that begins; empty if in doubt."""
    found = buffer.rfind(_TAGS, start, end)
    stop = buffer.find(2, found, end)
    if found <= start or stop < found + 6 or buffer[found - 1] != 2:
        return b"", 0
    return bytes(buffer[found - 1 : stop + 1]), found - 1 - start


def _remember(tag: bytes) -> int:
    if len(_cache) >= _CACHE_MAX:
        _cache.clear()
    code = _cache[tag] = tags_code(tag.decode("utf-8", "replace"))
    return code


def parked_tags_code(
    buffer: bytes | bytearray, start: int, end: int, store_timestamp_ms: int, levels_ms: Sequence[int]
) -> int:
    """Return the code of a record of `SCHEDULE_TOPIC_XXXX`: when it is due, in ms.

    Without a delay level it is the tag's code, as in any other topic.
    """
    due = deliver_time(find_property_in(buffer, b"DELAY", start, end), store_timestamp_ms, levels_ms)
    return tags_code_in(buffer, start, end) if due is None else due
