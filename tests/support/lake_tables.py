"""Tables of a lakehouse as their libraries read them, apart from the code that writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa


def read(table_format: str, place: Path, name: str = "reput.messages") -> pa.Table:
    """Return a table's rows."""
    if table_format == "delta":
        from deltalake import DeltaTable

        return DeltaTable(place).to_pyarrow_table()
    return iceberg(place, name).scan().to_arrow()


def iceberg(place: Path, name: str = "reput.messages") -> Any:
    """Load an Iceberg table from the catalog in its warehouse."""
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog(
        "reput", type="sql", uri=f"sqlite:///{place / 'catalog.db'}", warehouse=place.absolute().as_uri()
    )
    return catalog.load_table(name)


def data_files(place: Path) -> int:
    """Return how many Parquet files are there, committed or not."""
    return sum(1 for _ in place.rglob("*.parquet"))


def sums(rows: pa.Table) -> tuple[int, int, int, int]:
    """Return the numbers of rows and of distinct messages, and the sums of offsets and of body sizes."""
    with duckdb.connect() as connection:
        connection.register("messages", rows)
        found = connection.execute(
            "SELECT count(*), count(DISTINCT (topic, brokerName, queueId, queueOffset)), "
            "coalesce(sum(queueOffset), 0), coalesce(sum(octet_length(body)), 0) FROM messages"
        ).fetchone()
    assert found is not None
    return tuple(map(int, found))  # type: ignore[return-value]
