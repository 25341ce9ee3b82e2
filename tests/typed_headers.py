"""All typed headers, whichever file of `reput_protocol.commands` they are in."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

import reput_protocol.commands
from reput_protocol.commands.header import CommandHeader


def typed_headers() -> list[type[CommandHeader]]:
    for module in iter_modules(reput_protocol.commands.__path__, "reput_protocol.commands."):
        import_module(module.name)
    found = CommandHeader.__subclasses__()
    for kind in found:
        found += kind.__subclasses__()
    return [kind for kind in found if kind.__module__.startswith("reput_protocol.")]
