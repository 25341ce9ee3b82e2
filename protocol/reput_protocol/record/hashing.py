"""The hashes of the store, Java's string hash: the tags code of a ConsumeQueue unit, the key hash of the index."""

from __future__ import annotations

from functools import lru_cache

from reput_protocol.kernel.tables import java_hash
from reput_protocol.properties import split_keys

__all__ = ["index_hash", "index_keys", "java_hash", "tags_code"]

_I32_MIN = -0x8000_0000


@lru_cache(maxsize=4096)
def tags_code(tag: str | None) -> int:
    """Return what a ConsumeQueue unit holds for `tag`: its hash, or 0 without a tag.

    (RocketMQ: MessageExtBrokerInner.)
    """
    return java_hash(tag) if tag else 0


def index_hash(key: str) -> int:
    """Return the non-negative hash under which the index files `key` (RocketMQ: IndexFile).

    The one value without a positive twin, -2^31, becomes 0.
    """
    value = java_hash(key)
    return 0 if value == _I32_MIN else abs(value)


def index_keys(topic: str, unique_key: str | None, keys: str | None) -> list[str]:
    """Return what one record is indexed under, given its topic and the values of `UNIQ_KEY` and `KEYS`."""
    texts = [f"{topic}#{unique_key}"] if unique_key else []
    return texts + [f"{topic}#{key}" for key in split_keys(keys)]
