"""What `kernel` takes from Cython when it is not compiled: types that mean nothing, decorators that do nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

_Decorated = TypeVar("_Decorated")

compiled: Final = False
"""Whether the module that asks runs as machine code."""


def cast(_type: object, value: Any) -> Any:
    """Return the value: an integer of Python has no size."""
    return value


def declare(_type: object, value: Any) -> Any:
    """Return the value of a variable."""
    return value


def exceptval(*_args: object, **_options: object) -> Callable[[_Decorated], _Decorated]:
    """Return what decorates a function without changing it."""
    return cfunc


def cfunc(decorated: _Decorated) -> _Decorated:
    """Return the function or class as it is."""
    return decorated


inline = cclass = cfunc
address = None
bint = char = uchar = short = int = uint = longlong = ulonglong = void = Py_ssize_t = const = None  # noqa: A001
