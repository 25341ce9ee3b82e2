"""The loops over records and over the files that describe them, in typed Python.

Cython compiles these modules when the package is built and a C compiler is available; otherwise they are interpreted.
They use no socket, file or clock, and read nothing outside of the buffer that is passed.
"""

from __future__ import annotations

from importlib.machinery import ExtensionFileLoader
from importlib.util import find_spec
from typing import Final

MODULES: Final = ("frames", "index", "put_blocks", "records", "tables", "timer", "units")
"""The compiled modules: all or none of them are."""


def _is_compiled(name: str) -> bool:
    spec = find_spec(f"{__name__}.{name}")
    return spec is not None and isinstance(spec.loader, ExtensionFileLoader)


FORM: Final = "compiled" if all(map(_is_compiled, MODULES)) else "interpreted"
"""Whether the kernel is compiled or interpreted."""
