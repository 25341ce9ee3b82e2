"""Where Spark finds the format `reput` by itself: it imports every package whose name begins with `pyspark_`.

All of them are imported at the first look-up of any format, so this one does nothing else and loads next to nothing.
"""

from reput_pipeline.data_source import ReputDataSource as DefaultSource

__all__ = ["DefaultSource"]
