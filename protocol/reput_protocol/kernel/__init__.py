"""Every walk over records and over the files that describe them, as plain loops in typed Python.

Cython compiles these modules where the package is built and a C compiler is at hand; elsewhere they run as they are.
Nothing here knows a socket, a file or a clock, and nothing is read outside of the buffer that is passed.
"""

from __future__ import annotations

from importlib.machinery import ExtensionFileLoader
from importlib.util import find_spec
from typing import Final

MODULES: Final = ("frames", "index", "put_blocks", "records", "tables", "timer", "units")
"""The modules that are compiled, all or none of them."""


def _is_compiled(name: str) -> bool:
    spec = find_spec(f"{__name__}.{name}")
    return spec is not None and isinstance(spec.loader, ExtensionFileLoader)


FORM: Final = "compiled" if all(map(_is_compiled, MODULES)) else "interpreted"
"""How the kernel runs."""
