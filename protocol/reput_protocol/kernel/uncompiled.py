"""The interpreted kernel's substitute for Cython: types without meaning, decorators without effect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

_Decorated = TypeVar("_Decorated")

compiled: Final = False
"""Whether the importing module runs as machine code."""


def cast(_type: object, value: Any) -> Any:
    """Return the value: Python's integers have no size."""
    return value


def declare(_type: object, value: Any) -> Any:
    """Return the value of a variable."""
    return value


def exceptval(*_args: object, **_options: object) -> Callable[[_Decorated], _Decorated]:
    """Return a decorator without effect."""
    return cfunc


def cfunc(decorated: _Decorated) -> _Decorated:
    """Return the function or class unchanged."""
    return decorated


inline = cclass = cfunc
address = None
bint = char = uchar = short = int = uint = longlong = ulonglong = void = Py_ssize_t = const = None  # noqa: A001
