"""The page of the client's API: the public names in groups, each with what it is.

On the site, mkdocstrings inserts the whole docstrings where the page has comments `<!-- ::: NAME -->`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module

import reput_client
from docs_reference.markdown import cell
from reput_client import errors
from reput_client.exported import modules_of

HEAD = """\
# Client API

The public names of `reput_client`, for trio and asyncio. `reput_client.blocking` has the same
classes with blocking methods. How to use them is on the page [client](../client.md); exceptions are
in [errors](errors.md).
"""

GROUPS = {
    "Sending": ("Message", "Producer", "SendReceipt", "Posted", "TransactionProducer", "TransactionReceipt"),
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
        # Under their modules: a reader of source does not follow names that only type checkers import.
        full_names = [f"{_MODULES.get(name, 'reput_client')}.{name}" for name in names]
        yield "\n| Name | |\n|---|---|\n"
        yield from (f"| `{name}` | {_summary(full)} |\n" for name, full in zip(names, full_names, strict=True))
        yield from (f"\n<!-- ::: {full} -->\n" for full in full_names)


def _summary(full_name: str) -> str:
    """Return the first paragraph of a docstring."""
    module, _, name = full_name.rpartition(".")
    found = getattr(import_module(module), name)
    if not (inspect.isclass(found) or inspect.isfunction(found)):
        return "a name for types, for annotations"
    return cell((inspect.getdoc(found) or "").partition("\n\n")[0])
