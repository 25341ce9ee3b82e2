"""The unique ids of the messages of a block, read without judging it."""

from __future__ import annotations

from typing import Final

from reput_broker.request import Refusal
from reput_protocol.buffers import Buffer
from reput_protocol.errors import ErrorCode
from reput_protocol.properties import UNIQ_KEY, find_property_in
from reput_protocol.record_layout import HEAD_BYTES, I32, topic_field

_UNIQ_KEY: Final = UNIQ_KEY.encode()


def unique_ids_of(block: Buffer, topic: str, count: int) -> tuple[list[str], list[int]]:
    """Return the unique ids and the sizes of the records of a block.

    A block that breaks a rule may give anything, or fewer: whoever stores it judges it.

    Raises:
        Refusal: a record has no unique id, or that of one before it.
    """
    data = bytes(block)
    after_body = len(topic_field(topic.encode())[1]) + 2
    unique_ids: list[str] = []
    sizes: list[int] = []
    position, end = 0, len(data)
    while position + HEAD_BYTES <= end and len(unique_ids) < count:
        (size,) = I32.unpack_from(data, position)
        (body_size,) = I32.unpack_from(data, position + HEAD_BYTES - 4)
        properties_at = position + HEAD_BYTES + max(0, body_size) + after_body
        if not properties_at <= position + size <= end:
            break
        found = find_property_in(data, _UNIQ_KEY, properties_at, position + size)
        if found is None:
            raise Refusal(
                ErrorCode.INVALID_ARGUMENT,
                f"deduplication knows messages by their unique id, but record {len(unique_ids)} has none; give each a "
                f"property {UNIQ_KEY}",
            )
        unique_ids.append(found.decode(errors="replace"))
        sizes.append(size)
        position += size
    if len(set(unique_ids)) < len(unique_ids):
        twice = next(one for index, one in enumerate(unique_ids) if one in unique_ids[:index])
        raise Refusal(
            ErrorCode.DUPLICATE,
            f"two messages of the block have the unique id {twice!r}; send one of them, or give each its own",
        )
    return unique_ids, sizes
