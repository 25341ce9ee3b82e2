"""The base class of tasks: PySpark's, which its driver requires, or an empty one where PySpark is not installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.datasource import InputPartition as InputPartition
else:
    try:
        from pyspark.sql.datasource import InputPartition
    except ModuleNotFoundError as missing:
        if missing.name != "pyspark":
            raise

        class InputPartition:
            """Part of a query, for jobs that run in their own process."""
