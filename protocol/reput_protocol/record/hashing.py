"""The store's hashes, by Java's string hash: tags code of a ConsumeQueue unit, key hash of the index."""

from __future__ import annotations

from functools import lru_cache

from reput_protocol.kernel.tables import java_hash
from reput_protocol.properties import split_keys

__all__ = ["index_hash", "index_keys", "java_hash", "tags_code"]

_I32_MIN = -0x8000_0000


@lru_cache(maxsize=4096)
def tags_code(tag: str | None) -> int:
    """Return a ConsumeQueue unit's tags code: the hash of `tag`, or 0 (RocketMQ: MessageExtBrokerInner)."""
    return java_hash(tag) if tag else 0


def index_hash(key: str) -> int:
    """Return the non-negative hash of `key` in the index (RocketMQ: IndexFile); 0 for -2^31."""
    value = java_hash(key)
    return 0 if value == _I32_MIN else abs(value)


def index_keys(topic: str, unique_key: str | None, keys: str | None) -> list[str]:
    """Return a record's index keys, by its topic and the values of `UNIQ_KEY` and `KEYS`."""
    texts = [f"{topic}#{unique_key}"] if unique_key else []
    return texts + [f"{topic}#{key}" for key in split_keys(keys)]
