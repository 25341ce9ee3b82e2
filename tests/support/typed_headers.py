"""All typed headers, whichever file of `reput_protocol.commands` they are in, and their requests."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

import reput_protocol.commands
from reput_protocol.codes import RequestCode
from reput_protocol.commands.base import CommandHeader
from reput_protocol.commands.table import REQUESTS


def typed_headers() -> list[type[CommandHeader]]:
    for module in iter_modules(reput_protocol.commands.__path__, "reput_protocol.commands."):
        import_module(module.name)
    found = CommandHeader.__subclasses__()
    for kind in found:
        found += kind.__subclasses__()
    return [kind for kind in found if kind.__module__.startswith("reput_protocol.")]


def code_of(header: type[CommandHeader]) -> RequestCode:
    """Return the first request in the table that has a header."""
    return next(row.code for row in REQUESTS.values() if row.header is header)
