"""The hashes of the store:

Java's string hash, the tag hash of a ConsumeQueue unit, the key hash of the index.
"""

from __future__ import annotations

from functools import lru_cache

_I32_MIN = -0x8000_0000


def java_hash(text: str) -> int:
    """Return Java's `String.hashCode` of `text`: signed 32 bits, over UTF-16 code units.

    A character beyond the basic plane counts as its two surrogates, as it does in Java.
    """
    value = 0
    if text.isascii():
        for unit in text.encode("ascii"):
            value = (31 * value + unit) & 0xFFFF_FFFF
    else:
        units = text.encode("utf-16-be", "surrogatepass")
        for index in range(0, len(units), 2):
            value = (31 * value + (units[index] << 8 | units[index + 1])) & 0xFFFF_FFFF
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value


@lru_cache(maxsize=4096)
def tags_code(tag: str | None) -> int:
    """Return what a ConsumeQueue unit holds for `tag`: its hash, or 0 without a tag.

    (RocketMQ: MessageExtBrokerInner.) Cached, because a topic has few tags and very many messages.
    """
    return java_hash(tag) if tag else 0


def index_hash(key: str) -> int:
    """Return the non-negative hash under which the index files `key` (RocketMQ: IndexFile).

    The one value without a positive twin, -2^31, becomes 0.
    """
    value = java_hash(key)
    return 0 if value == _I32_MIN else abs(value)
