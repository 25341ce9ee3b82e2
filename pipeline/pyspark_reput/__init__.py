"""Makes the format `reput` known to Spark, which imports every package `pyspark_*` when it first looks up a format.

So the import must stay cheap.
"""

from reput_pipeline.data_source import ReputDataSource as DefaultSource

__all__ = ["DefaultSource"]
