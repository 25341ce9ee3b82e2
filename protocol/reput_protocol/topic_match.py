"""Comparing records with what they should be, many at once."""

from __future__ import annotations

import numpy as np

from reput_protocol.columns import BoolArray, RecordColumns
from reput_protocol.rows_at import rows_at


def has_topic(columns: RecordColumns, sound: BoolArray, topic: str) -> BoolArray:
    """Return which of the sound records have a topic."""
    name = topic.encode()
    same: BoolArray = sound & (columns.topic_size == len(name))
    if not same.any():
        return same
    topics = rows_at(columns.buffer, columns.topic_position[same], len(name))
    same[same] = (topics == np.frombuffer(name, np.uint8)).all(axis=1)
    return same
