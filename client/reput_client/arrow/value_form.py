"""How values become a column."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pyarrow as pa


class ValueForm(NamedTuple):
    """The type of a column, and the function that makes a deserialized value one for it, if it is not one."""

    kind: pa.DataType
    fit: Callable[[Any], Any] | None = None
