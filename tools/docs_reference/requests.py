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
from reput_broker.access.requests import requirement_of
from reput_broker.remoting.request import Handler
from reput_protocol.codes import OWN_REQUEST_CODE_MIN
from reput_protocol.commands.base import Kind, RequestType, Sender
from reput_protocol.commands.table import NOT_SERVED, REQUESTS

HEAD = """\
# Request codes

What a broker serves, with RocketMQ's numbers and names. Any other request gets response code 3
(`REQUEST_CODE_NOT_SUPPORTED`), and its connection stays open. [Protocol](../protocol.md) has the
fields of each request, [Compatibility](../compatibility.md) has the clients that send them.

*From* is who sends it. *Slave* is what a slave does with it, if it does not serve it as a master does.
*Right* is what the user of a request needs with [access control](../security.md). Names in `code`
are fields of its header. The retry and dead-letter topics of a group are checked as the group,
system topics as the cluster. Requests marked * are administrative: they are logged, and while access
control is off they are taken from the broker's own machine only.
"""

TABLE = """
## {title}

| Code | Name | From | What the broker does | Slave | Right |
|---|---|---|---|---|---|
"""

TO_CLIENTS = """
## Requests to clients

A broker sends these. A client that does not serve them answers with response code 3.

| Code | Name | Answered |
|---|---|---|
"""

REFUSED = """
## Not served

RocketMQ has these requests, and brokers of Reput refuse them by name.

| Code | Name | Why |
|---|---|---|
"""


def page() -> str:
    """Return the page."""
    served = trio.run(_served)
    parts = [HEAD]
    for title, is_own in (("RocketMQ's", False), ("Reput's", True)):
        parts.append(TABLE.format(title=title))
        parts += [
            _line(REQUESTS[code], what)
            for code, what in sorted(served.items())
            if (code >= OWN_REQUEST_CODE_MIN) is is_own
        ]
    to_clients = (row for row in REQUESTS.values() if row.sender is Sender.TO_CLIENTS)
    parts.append(TO_CLIENTS)
    parts += [
        f"| {row.code} | `{row.code.name}` | {'no' if row.is_oneway else 'yes'} |\n"
        for row in sorted(to_clients, key=lambda row: row.code)
    ]
    parts.append(REFUSED)
    parts += [f"| {code} | `{name}` | {cell(reason)} |\n" for code, name, reason in NOT_SERVED.values()]
    return "".join(parts)


def _line(row: RequestType, what: str) -> str:
    slave = "" if row.kind is Kind.ANY else cell(row.kind.value)
    return f"| {row.code} | `{row.code.name}` | {row.sender} | {cell(what)} | {slave} | {_right(row.code)} |\n"


def _right(code: int) -> str:
    found = requirement_of(code)
    return cell(found.text) + " *" * found.is_administrative


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
