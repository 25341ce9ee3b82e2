"""The page of the client's API: the public names in groups; mkdocstrings inserts their docstrings."""

from __future__ import annotations

from collections.abc import Iterator

import reput_client
from reput_client import errors

HEAD = """\
# Client API

The public names of `reput_client`, for trio and asyncio. `reput_client.blocking` has the same
classes with blocking methods. How to use them is on the page [client](../client.md); exceptions are
in [errors](errors.md).
"""

GROUPS = {
    "Sending": (
        "Message",
        "Producer",
        "SendReceipt",
        "Posted",
        "TransactionProducer",
        "TransactionReceipt",
    ),
    "Consuming": (
        "Consumer",
        "ReceivedMessage",
        "PopConsumer",
        "PoppedMessage",
        "PullConsumer",
        "PullResult",
        "PullStatus",
        "MessageQueue",
    ),
    "Handling failures": ("OnFailure", "RetryHere", "GiveBack", "StopRunning", "Verdict", "Again", "Failure"),
    "Administration": ("Admin",),
    "Tracing": ("otel.instrument", "otel.uninstrument", "otel.processing"),
}
"""The names that most programs use, by heading; all others of `reput_client` follow."""


def page() -> str:
    """Return the page."""
    grouped = {name for names in GROUPS.values() for name in names}
    rest = [name for name in reput_client.__all__ if name not in grouped and name not in errors.__all__]
    return "".join((HEAD, *_sections({**GROUPS, "More": tuple(rest)})))


def _sections(groups: dict[str, tuple[str, ...]]) -> Iterator[str]:
    for heading, names in groups.items():
        yield f"\n## {heading}\n"
        for name in names:
            yield f"\n::: reput_client.{name}\n"
