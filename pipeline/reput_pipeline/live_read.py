"""Tasks of a query over a cluster."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition


@dataclass
class LivePartition(InputPartition):
    """A task."""


def read_live(partition, options, schema):
    yield
