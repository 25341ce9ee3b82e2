"""What a query does about messages that it cannot read: `failOnDataLoss` and `onDamage`."""

from __future__ import annotations

from collections import Counter

from reput_pipeline.source.options import SourceOptions
from reput_pipeline.spark.errors import DamagedStore, DataLost
from reput_pipeline.spark.notes import note
from reput_protocol.printable import counted


class Tolerance:
    """Raises, or counts what the options permit to leave out."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._first: dict[object, str] = {}
        self._lost: Counter[object] = Counter()
        self._damaged: Counter[str] = Counter()

    def lost(self, queue: object, reason: str) -> None:
        """Count a loss, and keep the first reason of each queue.

        Raises:
            DataLost: `failOnDataLoss` is true.
        """
        if self._options.fail_on_data_loss:
            raise DataLost(queue, reason)
        self._first.setdefault(queue, reason)
        self._lost[queue] += 1

    def damaged(self, place: str, offset: int, reason: str) -> None:
        """Count a damaged record.

        Raises:
            DamagedStore: `onDamage` is `error`.
        """
        if not self._options.skip_damage:
            raise DamagedStore(place, offset, reason)
        self._damaged[place.removesuffix(" at byte").removesuffix(", message")] += 1

    def report(self) -> None:
        """Log a line for each queue and each place."""
        for place, count in self._damaged.items():
            note(f"left out {counted(count, 'damaged record')} of {place}")
        for queue, reason in self._first.items():
            more = self._lost[queue] - 1
            note(f"queue {queue}: {reason}{f', and {more} more' if more else ''}")
