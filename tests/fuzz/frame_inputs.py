"""Frames as clients may send them: every request, every header type, fields of every sort, and damage to all of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random

from fuzz.mutations import mutated
from reput_protocol.codes import RequestCode
from reput_protocol.commands.table import REQUESTS
from reput_protocol.record.message import Message
from reput_protocol.record.put_block import encode_put_block
from reput_protocol.wire.frames import encode_frame
from reput_protocol.wire.header import Header, HeaderType, Value
from support.typed_requests import request_of

TOPICS = ("orders", "other")
_CODES = tuple(map(int, RequestCode))
_FIELDS: dict[int, Sequence[str]] = {
    code: () if row.header is None else row.header.__struct_encode_fields__ for code, row in REQUESTS.items()
}
_ALL_FIELDS = sorted({name for names in _FIELDS.values() for name in names})
_NAMES = (*TOPICS, "%RETRY%g", "%DLQ%g", "SCHEDULE_TOPIC_XXXX", "TBW102", "a/b", "\x1b[31m", "g\u202e", "x" * 300, "")
_GROUPS = ("g", "h", "%SYS%", "a b", "")
_NUMBERS: tuple[Value, ...] = (0, 1, 2, 3, 32, -1, 1 << 31, -(1 << 63), (1 << 64) - 1, 1.5, float("inf"), True, None)
_TEXTS = (
    "0",
    "1",
    "3",
    "-1",
    "inf",
    "nan",
    "1e99",
    "true",
    "9" * 25,
    "",
    "*",
    "a || b",
    "TAGS",
    "SQL92",
    "a > 1",
    "(" * 40,
)
_PROPERTIES = "KEYS\x01k\x02TAGS\x01a\x02DELAY\x013\x02"


def frame_input(rng: Random) -> bytes:
    """Return what one connection sends: a few frames, damaged or not."""
    data = b"".join(_frame(rng) for _ in range(rng.choice((1, 1, 2, 3, 8))))
    return mutated(rng, data) if rng.random() < 0.5 else data


def _frame(rng: Random) -> bytes:
    header_type = rng.choice(tuple(HeaderType))
    sort = rng.random()
    if sort < 0.7:
        code = rng.choice(tuple(_FIELDS))
    elif sort < 0.85:
        code = rng.choice((10, 11, 310, 320, 700_001))
    else:
        code = rng.choice(_CODES) if sort < 0.98 else rng.randrange(-(1 << 15), 1 << 15)
    names = _FIELDS.get(code) or rng.sample(_ALL_FIELDS, 6)
    if rng.random() < 0.1:
        names = [*names, *rng.sample(_ALL_FIELDS, 3)]
    ext = {name: _value(rng, name) for name in names if rng.random() < 0.93}
    flag = rng.choice((0, 0, 0, 0, 2, 1, 3, -1))
    header = Header(
        code if header_type is HeaderType.MSGPACK else code % 32_768, rng.randrange(1 << 31), flag, None, ext
    )
    body = _body(rng) if rng.random() < 0.7 else _typed_body(rng, code)
    try:
        return encode_frame(header, header_type, body)
    except (ValueError, TypeError, OverflowError):  # such a value has no form in this header
        header = Header(header.code, header.opaque, flag, None, {name: str(value) for name, value in ext.items()})
        return encode_frame(header, header_type, body)


def _value(rng: Random, name: str) -> Value:
    if rng.random() < 0.03:
        return rng.choice((*_NUMBERS, *_TEXTS))
    match name.lower():
        case "topic" | "b":
            return rng.choice(TOPICS) if rng.random() < 0.8 else rng.choice(_NAMES)
        case lowered if "group" in lowered or lowered == "a":
            return rng.choice(_GROUPS)
        case "queueid" | "e":
            return rng.choice((0, 1, 3, -1, "0", "2"))
        case "properties" | "i":
            return rng.choice((_PROPERTIES, "", "x", "\x01\x02", "KEYS\x01" * 20))
        case "subscription" | "expression":
            return rng.choice(_TEXTS)
    return rng.choice((0, 1, 3, 32, "0", "1")) if rng.random() < 0.8 else rng.choice((*_NUMBERS, *_TEXTS))


def _typed_body(rng: Random, code: int) -> bytes:
    """Return a body with everything that belongs to the request, damaged or not."""
    row = REQUESTS.get(code)
    if row is None:
        return b""
    _, body = request_of(row, lambda _, names: str(_value(rng, names.name)))
    return mutated(rng, body) if rng.random() < 0.3 else body


def _body(rng: Random) -> bytes:
    match rng.randrange(6):
        case 0:
            topic = rng.choice(TOPICS)
            messages = [Message(topic, rng.randbytes(rng.randint(0, 60))) for _ in range(rng.randint(1, 5))]
            block = bytes(encode_put_block(messages, topic, rng.choice((0, 0, 1)), 1_700_000_000_000))
            return mutated(rng, block) if rng.random() < 0.5 else block
        case 1:
            return json.dumps(_document(rng, 3)).encode()
        case 2:
            return rng.choice((b"[" * 200, b'{"a":' * 100, b"{clientID:'x'}", b"null", b'{"a":1e999}'))
        case 3:
            return rng.randbytes(rng.choice((0, 1, 30, 300)))
    return b""


def _document(rng: Random, depth: int) -> object:
    names = (
        "clientID",
        "consumerDataSet",
        "producerDataSet",
        "groupName",
        "topicConfigTable",
        "mqSet",
        "subString",
        "topic",
    )
    match rng.randrange(5) if depth else rng.randrange(2):
        case 0:
            return rng.choice((*_NAMES, *_GROUPS))
        case 1:
            return rng.choice((0, 1, -1, 1 << 70, 1.5, True, None))
        case 2:
            return [_document(rng, depth - 1) for _ in range(rng.randint(0, 3))]
    return {rng.choice(names): _document(rng, depth - 1) for _ in range(rng.randint(0, 4))}
