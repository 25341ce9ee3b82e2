"""How values become a column."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pyarrow as pa


class ValueForm(NamedTuple):
    """How deserialized values become a column.

    Attributes:
        kind: its type.
        fit: makes one value of the type of a deserialized one; None: it is one.
        check: raises ValueError if Arrow would coerce one of the values of rows; None: all are of the type.
    """

    kind: pa.DataType
    fit: Callable[[Any], Any] | None = None
    check: Callable[[list[Any]], None] | None = None
