"""What can go wrong while a query reads. Each names the place, and what can be done about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from reput_protocol.errors import ReputError

if TYPE_CHECKING:
    from reput_pipeline.source.places import QueueKey
    from reput_pipeline.source.ranges import QueueRange


class SourceError(ReputError):
    """A query cannot be answered; base of the others."""


class NotAStore(SourceError):
    """The path is no store directory."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(
            f"{path} is not a store directory: {reason}; give the directory that holds commitlog and consumequeue, "
            "at the same path on every executor"
        )
        self.path = path


class NoSuchTopic(SourceError):
    """A topic, or a queue of it, that the options name is not there."""

    def __init__(self, what: str, where: str) -> None:
        super().__init__(
            f"{what} is not in {where}; check the name, or read on without what is gone with failOnDataLoss=false"
        )


class DataLost(SourceError):
    """Messages that the query means are not there any more, or never were."""

    def __init__(self, queue: object, reason: str) -> None:
        super().__init__(
            f"queue {queue}: {reason}; with failOnDataLoss=false the query goes on with what is there"
        )


class RemadeTopic(SourceError):
    """A topic was deleted and created again since it was archived: the same offsets are other messages now."""

    def __init__(self, queue: QueueKey, archived: int) -> None:
        super().__init__(
            f"queue {queue}: its topic was deleted and created again since messages up to {archived} were archived; "
            "archive it into another directory, or leave the topic out"
        )


class DamagedStore(SourceError):
    """A record, or what leads to it, is damaged. `place` and `offset` say where: a file and a byte, or a message."""

    def __init__(self, place: str, offset: int, reason: str) -> None:
        super().__init__(
            f"{place} {offset}: {reason}; 'reput store verify' tells more, and with onDamage=skip the query "
            "leaves out and counts what is damaged"
        )
        self.place = place
        self.offset = offset
        self.reason = reason


class NotAnArchive(SourceError):
    """A directory is no archive, not the kind that is wanted, or not whole."""


class BrokerGone(SourceError):
    """A batch was planned with messages of a broker that the cluster does not name any more."""

    def __init__(self, part: QueueRange, brokers: Sequence[str]) -> None:
        super().__init__(
            f"the batch was planned with {part}, of broker {part.queue.broker}, but the cluster now names only "
            f"{', '.join(brokers) or 'none'}; start that broker, or register it again, and start the job again"
        )


class TooManyPartitions(SourceError):
    """The messages of one range would go into more files of an archive than make sense."""


class SinkError(ReputError):
    """A frame cannot be written as it is. What of it was staged is dropped."""
