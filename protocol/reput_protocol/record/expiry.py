"""Messages that expire. Reput's: RocketMQ has no such property, and its clients and brokers keep these as they are.

`EXPIRES_AFTER_MS` counts from when the message is stored in its queue: of a delayed message, from its delivery on. Of a
message that is redelivered, the broker replaces it by `EXPIRES_AT_MS`, the moment.
"""

from __future__ import annotations

import re
from typing import Final

from reput_protocol.properties import EXPIRES_AFTER, EXPIRES_AT, find_property

MARK: Final = b"EXPIRES_A"
"""Part of the encoded properties of each message that expires."""
_NUMBER: Final = re.compile(r"[0-9]{1,18}")
_AT: Final = EXPIRES_AT.encode()
_AFTER: Final = EXPIRES_AFTER.encode()


def expiry_in(properties: bytes, store_timestamp_ms: int) -> int | None:
    """Return the moment, in ms since 1970, from which on a message is expired; None if it never is.

    Args:
        properties: of its record, encoded. A value that is not a number means none.
        store_timestamp_ms: of its record.
    """
    return _moment(
        _text(find_property(properties, _AT)), _text(find_property(properties, _AFTER)), store_timestamp_ms
    )


def fix_expiry(properties: dict[str, str], store_timestamp_ms: int) -> None:
    """Give a message that is stored once more the moment at which it expires, in place of a time to live."""
    after = properties.pop(EXPIRES_AFTER, None)
    if after is not None:
        moment = _moment(properties.get(EXPIRES_AT), after, store_timestamp_ms)
        if moment is not None:
            properties[EXPIRES_AT] = str(moment)


def expires(properties: dict[str, str]) -> bool:
    """Tell whether a message says when it expires."""
    return EXPIRES_AFTER in properties or EXPIRES_AT in properties


def _moment(at: str | None, after: str | None, store_timestamp_ms: int) -> int | None:
    moments = []
    if at is not None and _NUMBER.fullmatch(at):
        moments.append(int(at))
    if after is not None and _NUMBER.fullmatch(after):
        moments.append(store_timestamp_ms + int(after))
    return min(moments, default=None)


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "replace")
