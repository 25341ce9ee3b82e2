"""Log messages of the pipeline, on stderr, which Spark keeps in the logs of driver and executors."""

from __future__ import annotations

import sys

from reput_protocol.printable import printable


def note(text: str) -> None:
    """Write a line to stderr."""
    sys.stderr.write(f"reput: {printable(text)}\n")
    sys.stderr.flush()


class Losses:
    """Lost messages by queue (`failOnDataLoss=false`)."""

    def __init__(self) -> None:
        self._first: dict[object, str] = {}
        self._more: dict[object, int] = {}

    def add(self, queue: object, reason: str) -> None:
        """Keep the first reason of each queue and count the others."""
        if queue in self._first:
            self._more[queue] = self._more.get(queue, 0) + 1
        else:
            self._first[queue] = reason

    def report(self) -> None:
        """Log a line for each queue and forget them."""
        for queue, reason in self._first.items():
            more = self._more.get(queue, 0)
            note(f"queue {queue}: {reason}{f', and {more} more' if more else ''}")
        self._first, self._more = {}, {}
