"""Frames of a connection, and fields of headers."""

from __future__ import annotations

from typing import Any

try:
    import cython
except ImportError:
    from reput_protocol.kernel import uncompiled as cython

if cython.compiled:
    from cython.cimports.reput_protocol.kernel import raw
else:
    from reput_protocol.kernel import raw


def cut_frames(
    buffer: object, start: cython.Py_ssize_t, total_max: cython.longlong, header_max: cython.longlong, made: object
) -> tuple[list[Any], int, int, tuple[int, int] | None]:
    """Split `buffer` from `start` on into whole frames (`frames`).

    Args:
        total_max, header_max: maximum total and header size that a frame may state.
        made: creates a frame from a tuple: header type, header as bytes, body as a view of `buffer`.

    Returns:
        The frames; where they end; the size of the next frame as far as known; total and header size of that frame if
            it is invalid, else None.
    """
    data: cython.const[cython.uchar][::1] = buffer
    view = memoryview(buffer)
    end: cython.Py_ssize_t = len(data)
    needed: cython.longlong = 8
    frames: list[Any] = []
    fault = None
    total: cython.longlong
    header_size: cython.longlong
    body: cython.Py_ssize_t
    while end - start >= 4:
        total = raw.u32(data, start)
        if end - start < 8:
            if total > total_max or total < 4:
                fault = (total, 0)
            break
        header_size = raw.i32(data, start + 4) & 0xFF_FFFF
        if total > total_max or header_size > header_max or header_size > total - 4:
            fault = (total, header_size)
            break
        if total + 4 > end - start:
            needed = total + 4
            break
        body = start + 8 + header_size
        frames.append(made((data[start + 4], bytes(view[start + 8 : body]), view[body : start + 4 + total])))
        start += 4 + total
    return frames, start, needed, fault


def text_fields(data: bytes, at: cython.Py_ssize_t, fields_max: cython.Py_ssize_t) -> dict[str, str]:
    """Read the fields in `data` from `at` on: each is 2 bytes of size, name, 4 bytes of size, value.

    Raises:
        ValueError: a size exceeds the data, a text is not UTF-8, or there are more than `fields_max`.
    """
    buffer: cython.const[cython.uchar][::1] = data
    end: cython.Py_ssize_t = len(buffer)
    fields: dict[str, str] = {}
    count: cython.Py_ssize_t = 0
    size: cython.Py_ssize_t
    while at < end:
        if count == fields_max:
            raise ValueError(f"more than {fields_max} fields")
        if end - at < 2:
            raise ValueError(f"{end - at} bytes are left, too few for the size of a field name")
        size = raw.i16(buffer, at)
        at += 2
        if not 0 <= size <= end - at:
            raise ValueError(f"field name of {size} bytes, but {end - at} are left")
        name = data[at : at + size].decode("utf-8")
        at += size
        if end - at < 4:
            raise ValueError(f"{end - at} bytes are left, too few for the size of a field value")
        size = raw.i32(buffer, at)
        at += 4
        if not 0 <= size <= end - at:
            raise ValueError(f"field value of {size} bytes, but {end - at} are left")
        fields[name] = data[at : at + size].decode("utf-8")
        at += size
        count += 1
    return fields


def typed_fields(ext: object, integers: tuple[str, ...], flags: tuple[str, ...]) -> dict[str, Any]:
    """Return the fields, with texts converted to integers and flags.

    Args:
        integers: names of integer fields: text of up to 20 decimal digits, with an optional sign.
        flags: names of flag fields: `true` or `false` in any case, or `1` or `0` as RocketMQ's C++ client writes.
    """
    found: dict[str, Any] = dict(ext)  # type: ignore[call-overload]
    for name in integers:
        value = found.get(name)
        if isinstance(value, str):
            digits: str = value[1:] if value[:1] == "-" or value[:1] == "+" else value
            if len(digits) <= 20 and digits.isascii() and digits.isdigit():
                found[name] = int(value)
    for name in flags:
        value = found.get(name)
        if isinstance(value, str):
            text: str = value.lower()
            if text == "true" or text == "1":
                found[name] = True
            elif text == "false" or text == "0":
                found[name] = False
    return found
