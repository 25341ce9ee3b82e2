"""Results of tasks as messages with the task's id as key."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from reput_client.received import ReceivedMessage


def result_that_counts(newest_first: Iterable[ReceivedMessage], rank: Callable[[bytes], int]) -> bytes | None:
    """Return the body of the newest one of the results with the highest rank, or None without any.

    A task that has run twice, or states that were stored by several processes, leave several of them.

    Args:
        rank: higher for final results.
    """
    return max((message.body for message in newest_first), key=rank, default=None)
