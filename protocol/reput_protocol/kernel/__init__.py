"""The loops over records and over the files that describe them, in typed Python.

Cython compiles these modules when the package is built, if there is a C compiler; otherwise they are interpreted. They
use no socket, file or clock, and read nothing outside of the passed buffer.
"""

from __future__ import annotations

from importlib.machinery import ExtensionFileLoader
from importlib.util import find_spec
from typing import Final

MODULES: Final = ("frames", "index", "put_blocks", "records", "tables", "timer", "units")
"""All of them are compiled, or none."""


def _is_compiled(name: str) -> bool:
    spec = find_spec(f"{__name__}.{name}")
    return spec is not None and isinstance(spec.loader, ExtensionFileLoader)


FORM: Final = "compiled" if all(map(_is_compiled, MODULES)) else "interpreted"
