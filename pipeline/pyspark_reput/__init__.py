"""Makes the format `reput` known to Spark, which imports every package whose name begins with `pyspark_`.

Spark does so when it first looks up any format, so this package must stay cheap to import.
"""

from reput_pipeline.data_source import ReputDataSource as DefaultSource

__all__ = ["DefaultSource"]
