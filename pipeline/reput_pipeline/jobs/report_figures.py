"""What the messages of a frame are like, by topic, tag and hour: aggregated by Spark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COLUMNS = ("topic", "tags", "keys", "body", "storeTimestamp")
"""What a frame must have."""
_QUANTILE_ACCURACY = 1000


@dataclass(frozen=True)
class Figures:
    """Rows of plain values, the largest first; sizes are bytes of bodies, times ms since 1970."""

    topics: list[dict[str, Any]]
    tags: list[dict[str, Any]]
    hours: list[dict[str, Any]]
    keys: list[dict[str, Any]]
    sizes: list[dict[str, Any]]

    @property
    def messages(self) -> int:
        """How many messages there are."""
        return sum(row["messages"] for row in self.topics)

    @property
    def bytes(self) -> int:
        """How many bytes their bodies have."""
        return sum(row["bytes"] for row in self.topics)


def figures_of(frame: DataFrame, *, top: int) -> Figures:
    """Aggregate the messages of a frame, reading it once.

    Args:
        frame: with `COLUMNS`.
        top: how many tags and keys of each topic to name.
    """
    from pyspark import StorageLevel
    from pyspark.sql import functions as f
    from pyspark.sql.window import Window

    small = frame.select(
        "topic",
        "tags",
        "keys",
        f.octet_length("body").alias("size"),
        f.unix_millis("storeTimestamp").alias("at"),
    ).persist(StorageLevel.MEMORY_AND_DISK)
    count, total = f.count("*").alias("messages"), f.coalesce(f.sum("size"), f.lit(0)).alias("bytes")
    largest = Window.partitionBy("topic").orderBy(f.desc("messages"), f.asc("name"))
    try:
        quantiles = f.percentile_approx("size", [0.5, 0.9, 0.99], _QUANTILE_ACCURACY)
        topics = small.groupBy("topic").agg(
            count,
            total,
            f.min("at").alias("first_ms"),
            f.max("at").alias("last_ms"),
            quantiles.alias("quantiles"),
            f.max("size").alias("size_max"),
            f.countDistinct("tags").alias("tags"),
        )
        tags = small.groupBy("topic", f.col("tags").alias("name")).agg(count, total)
        hours = small.groupBy("topic", (f.floor(f.col("at") / 3_600_000) * 3_600_000).alias("hour_ms")).agg(
            count, total
        )
        split_keys = f.explode(f.split("keys", " "))
        keys = (
            small.where("keys is not null")
            .select("topic", "size", split_keys.alias("name"))
            .where("name != ''")
        )
        keys = keys.groupBy("topic", "name").agg(count, total)
        sizes = small.groupBy("topic", f.floor(f.log2(f.greatest("size", f.lit(1)))).alias("power")).agg(
            count
        )
        return Figures(
            [_topic(row.asDict()) for row in topics.orderBy(f.desc("messages"), "topic").collect()],
            _rows(
                tags.withColumn("rank", f.row_number().over(largest)).where(f"rank <= {top}").drop("rank"),
                "topic",
            ),
            [row.asDict() for row in hours.orderBy("topic", "hour_ms").collect()],
            _rows(
                keys.withColumn("rank", f.row_number().over(largest)).where(f"rank <= {top}").drop("rank"),
                "topic",
            ),
            [row.asDict() for row in sizes.orderBy("topic", "power").collect()],
        )
    finally:
        small.unpersist()


def _rows(frame: DataFrame, first: str) -> list[dict[str, Any]]:
    found = [row.asDict() for row in frame.collect()]
    return sorted(found, key=lambda row: (row[first], -row["messages"], row["name"] or ""))


def _topic(row: dict[str, Any]) -> dict[str, Any]:
    quantiles = row.pop("quantiles") or [None, None, None]
    span_s = max(row["last_ms"] - row["first_ms"], 1) / 1000
    row |= dict(zip(("size_p50", "size_p90", "size_p99"), quantiles, strict=True))
    row["messages_per_s"] = round(row["messages"] / span_s, 3)
    row["bytes_per_s"] = round(row["bytes"] / span_s, 1)
    return row
