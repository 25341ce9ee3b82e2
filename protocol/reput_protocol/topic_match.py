"""Comparing records with what they should be, many at once."""

from __future__ import annotations

import numpy as np

from reput_protocol.columns import BoolArray, RecordColumns


def has_topic(columns: RecordColumns, sound: BoolArray, topic: str) -> BoolArray:
    """Return which of the sound records have a topic."""
    name = topic.encode()
    same: BoolArray = sound & (columns.topic_size == len(name))
    if not same.any():
        return same
    windows = np.ndarray((len(columns.buffer) - len(name) + 1,), f"V{len(name)}", columns.buffer, 0, (1,))
    at = columns.topic_position[same]
    same[same] = (windows[at].view(np.uint8).reshape(-1, len(name)) == np.frombuffer(name, np.uint8)).all(
        axis=1
    )
    return same
