"""Words for who looks into the logs of a driver or an executor: Spark keeps what their Pythons write to stderr."""

from __future__ import annotations

import sys

from reput_protocol.printable import printable


def note(text: str) -> None:
    """Write a line to stderr."""
    sys.stderr.write(f"reput: {printable(text)}\n")
    sys.stderr.flush()


class Losses:
    """What of each queue is not there any more, for a query that goes on with what is."""

    def __init__(self) -> None:
        self._first: dict[object, str] = {}
        self._more: dict[object, int] = {}

    def add(self, queue: object, reason: str) -> None:
        """Keep it until it is told: the first reason of each queue, and how many followed."""
        if queue in self._first:
            self._more[queue] = self._more.get(queue, 0) + 1
        else:
            self._first[queue] = reason

    def tell(self) -> None:
        """Note what was lost, a line for each queue."""
        for queue, reason in self._first.items():
            more = self._more.get(queue, 0)
            note(f"queue {queue}: {reason}{f', and so on {more} times' if more else ''}")
        self._first, self._more = {}, {}
