"""Errors of source and sink, each of which names the place and the remedy, and notes in the logs of Spark."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from reput_client import errors
from reput_client.arrow.urls import without_secret
from reput_protocol.codes import ResponseCode
from reput_protocol.errors import BrokerError, ReputError, error_from_response
from reput_protocol.printable import printable

if TYPE_CHECKING:
    from reput_client.arrow.queues import QueueKey, QueueRange


class SourceError(ReputError):
    """A query cannot be answered."""


class NoSuchTopic(SourceError):
    """A topic or queue that the options name does not exist."""

    def __init__(self, what: str, where: str) -> None:
        super().__init__(
            f"{what} is not in {where}; check the name, or read without what is missing with failOnDataLoss=false"
        )


class DataLost(errors.DataLost):
    """Messages that the query is to read were deleted, or never existed."""

    def __init__(self, queue: object, reason: str) -> None:
        super().__init__(
            queue, reason, "with failOnDataLoss=false the query continues with the messages that are there"
        )


class BadValue(ReputError):
    """A body is not of its form, or a value does not fit its schema."""

    def __init__(self, place: str, what: str, reason: str) -> None:
        super().__init__(f"{place}: {what}: {reason}; with on_bad_value='null' the query continues")


class RemadeTopic(SourceError):
    """A topic was deleted and created again since it was archived; its offsets are other messages now."""

    def __init__(self, queue: QueueKey, archived: int) -> None:
        super().__init__(
            f"queue {queue}: its topic was deleted and created again since messages up to {archived} were archived; "
            "archive it into another directory, or leave the topic out"
        )


class DamagedStore(errors.DamagedStore):
    """A record, or a queue unit that points to it, is damaged."""

    def __init__(self, place: str, offset: int, reason: str) -> None:
        super().__init__(
            place,
            offset,
            reason,
            "'reput store verify' tells more, and with onDamage=skip the query leaves out damaged records and counts "
            "them",
        )


class NotAnArchive(SourceError):
    """A directory is not an archive of the required kind, or incomplete."""


class BucketLibraryMissing(SourceError):
    """The library that writes to object stores is not installed."""

    def __init__(self, place: str) -> None:
        super().__init__(
            f"an archive at {without_secret(place)} needs obstore, which is not installed: pip install ./client "
            "'.[bucket]' in the directory of Reput's source"
        )


class ArchiveInUse(SourceError):
    """Another job has written a file of an archive's metadata first; of that batch nothing is there twice."""

    def __init__(self, where: str, name: str) -> None:
        super().__init__(
            f"another job has written {name} of {where}: one job at a time may write to an archive; end the others, "
            "and start it again"
        )


class BrokerGone(SourceError):
    """The cluster no longer lists a broker of a planned batch; it may be back later."""

    retryable = True

    def __init__(self, part: QueueRange, brokers: Sequence[str]) -> None:
        super().__init__(
            f"the batch was planned with {part}, of broker {part.queue.broker}, but the cluster now lists only "
            f"{', '.join(brokers) or 'none'}; start that broker, or register it again, and start the job again"
        )


class NotArchived(SourceError):
    """Messages of a queue cannot be written to an archive."""

    def __init__(self, part: QueueRange, offset: int, reason: Exception) -> None:
        super().__init__(
            f"queue {part.queue}: messages {part.start} to {part.end - 1} are not archived, because of one at or soon "
            f"after offset {offset}, or of the disk: {reason}"
        )


class SinkError(ReputError):
    """A DataFrame cannot be written as it is; what is staged is dropped."""


class BatchNotWritten(SinkError):
    """A batch is not published, and can be written again: what was staged of it is gone, or at several brokers."""

    retryable = True

    def __init__(self, batch_id: int, reason: str) -> None:
        super().__init__(f"batch {batch_id} is not published: {reason}; run it again: start the query again")


_CAUSE: Final = re.compile(r"\b(reput_\w+(?:\.\w+)*)\.(\w+): (.+?)(?: SQLSTATE: \w+)*$", re.MULTILINE)
_OF_PYTHON: Final = re.compile(r"^(?!org\.|java\.|Caused by)[\w.]*(?:Error|Exception)\b(?:: |$)", re.MULTILINE)
"""The last line of a traceback of Python."""


class Cause(NamedTuple):
    """An error of source, sink or client in the text of one of Spark's."""

    name: str
    """Its class."""
    text: str
    retryable: bool
    """Whether the same may succeed later, without a change."""


def cause_in(error: BaseException) -> Cause | None:
    """Return which of our errors has caused one of Spark's, or None.

    Spark has it as text, before a plan, or between tracebacks of Java and Python. An error of ours that the program
    has answered with one of its own is not the cause.
    """
    text = str(error)
    found = [*_CAUSE.finditer(text)]
    if not found:
        return None
    last = found[-1]
    after = _OF_PYTHON.search(text, last.end())
    if after is not None and not after[0].startswith("pyspark."):
        return None
    module, name, words = last.groups()
    return Cause(name, words, _is_retryable(getattr(sys.modules.get(module), name, None), words))


def is_sparks_own(error: BaseException) -> bool:
    """Whether Spark has failed without an error of ours, as when its processes are ended."""
    return type(error).__module__.startswith(("py4j.", "pyspark.")) and cause_in(error) is None


def _is_retryable(kind: object, text: str) -> bool:
    if isinstance(kind, type) and issubclass(kind, BrokerError):
        # The symbol in the text, not the class, says why a broker refused a request.
        return error_from_response(ResponseCode.SYSTEM_ERROR, text, {}).retryable
    return bool(getattr(kind, "retryable", False))


def note(text: str) -> None:
    """Write a line to stderr, which Spark keeps in the logs of driver and executors."""
    sys.stderr.write(f"reput: {printable(text)}\n")
    sys.stderr.flush()
