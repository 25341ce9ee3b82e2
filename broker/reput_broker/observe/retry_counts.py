"""What is counted about messages that come back, dead letters and transactions: plain integers by their labels."""

from __future__ import annotations

from collections import Counter
from typing import Final

TRANSACTION_RESULTS: Final = ("commit", "rollback", "timeout")
CHECK_RESULTS: Final = ("commit", "rollback", "unknown", "no_producer")


class RetryCounts:
    """One owner: the event loop."""

    def __init__(self) -> None:
        self.retries: Counter[tuple[str, str]] = Counter()
        """Messages sent back, by group and the topic that they were sent to at first."""
        self.dead_letters: Counter[tuple[str, str]] = Counter()
        """Messages that became dead letters, likewise."""
        self.transactions: Counter[tuple[str, str]] = Counter()
        """Transactions decided, by topic and one of TRANSACTION_RESULTS."""
        self.checks: Counter[tuple[str, str]] = Counter()
        """Questions about transactions, by topic and one of CHECK_RESULTS."""

    def forget_topic(self, topic: str) -> None:
        """Drop what is counted of a topic that is deleted."""
        for table in (self.retries, self.dead_letters):
            for key in [key for key in table if key[1] == topic]:
                del table[key]
        for table in (self.transactions, self.checks):
            for key in [key for key in table if key[0] == topic]:
                del table[key]

    def forget_group(self, group: str) -> None:
        """Drop what is counted of a group that is deleted."""
        for table in (self.retries, self.dead_letters):
            for key in [key for key in table if key[0] == group]:
                del table[key]
