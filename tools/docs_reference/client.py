"""The page of the client's API: the public names in groups; mkdocstrings inserts their docstrings."""

from __future__ import annotations

from collections.abc import Iterator

import reput_client
from reput_client import errors
from reput_client.exported import modules_of

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
    "Arrow": ("arrow.read.read_arrow", "arrow.polars_scan.scan_polars"),
    "Administration": ("Admin",),
    "Tracing": ("otel.instrument", "otel.uninstrument", "otel.processing"),
}
"""The names that most programs use, by heading; all others of `reput_client` follow."""


_MODULES = modules_of(reput_client._OWN)  # noqa: SLF001


def page() -> str:
    """Return the page."""
    grouped = {name for names in GROUPS.values() for name in names}
    rest = [name for name in dir(reput_client) if name not in grouped and name not in errors.__all__]
    return "".join((HEAD, *_sections({**GROUPS, "More": tuple(rest)})))


def _sections(groups: dict[str, tuple[str, ...]]) -> Iterator[str]:
    for heading, names in groups.items():
        yield f"\n## {heading}\n"
        for name in names:
            # Under its module: a reader of source does not follow names that only type checkers import.
            yield f"\n::: {_MODULES.get(name, 'reput_client')}.{name}\n"
