"""The page of request codes, from the processors of a broker and their docstrings."""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import trio

from docs_reference.markdown import cell
from reput_broker import Broker, BrokerConfig
from reput_broker.request import Handler
from reput_protocol.codes import OWN_REQUEST_CODE_MIN, RequestCode

HEAD = """\
# Request codes

What a broker serves, with RocketMQ's numbers and names. Any other request gets response code 3
(`REQUEST_CODE_NOT_SUPPORTED`), and its connection stays open. [Protocol](../protocol.md) has the
fields of each request, [Compatibility](../compatibility.md) has the clients that send them.
"""

TABLE = """
## {title}

| Code | Name | What the broker does |
|---|---|---|
"""


def page() -> str:
    """Return the page."""
    served = trio.run(_served)
    parts = [HEAD]
    for title, is_own in (("RocketMQ's", False), ("Reput's", True)):
        parts.append(TABLE.format(title=title))
        parts += [
            f"| {code} | `{RequestCode(code).name}` | {cell(what)} |\n"
            for code, what in sorted(served.items())
            if (code >= OWN_REQUEST_CODE_MIN) is is_own
        ]
    return "".join(parts)


async def _served() -> Mapping[int, str]:
    """Return what a broker does for each code that it serves; the broker is new and runs for this moment only."""
    with tempfile.TemporaryDirectory() as directory:
        async with Broker(BrokerConfig(data_dir=Path(directory) / "store", port=0)) as broker:
            return {code: _description(handler) for code, handler in broker.handlers.items()}


def _description(handler: Handler) -> str:
    """Return the first paragraph of a processor's docstring; of a table for slaves, that of what answers with it."""
    if isinstance(handler, partial):
        handler = handler.args[-1]
    return (inspect.getdoc(handler) or "").partition("\n\n")[0]
