"""Read the complete batches of an archive."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final

from reput_pipeline.archives.directory import ArchiveDirectory
from reput_pipeline.archives.layout import is_cut, partition_values, spark_schema
from reput_pipeline.archives.manifests import ArchiveFile
from reput_pipeline.spark.errors import NotAnArchive
from reput_pipeline.spark.session import setting
from reput_protocol.printable import counted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DISCOVERY: Final = "spark.sql.sources.parallelPartitionDiscovery.threshold"
"""Spark lists more paths than this in a job with a task for each, which takes 20 to 50 times as long."""


def read_archive(spark: SparkSession, root: str | Path) -> DataFrame:
    """Return the messages of an archive, with the source's native columns. Raises as `read_files`."""
    archive = ArchiveDirectory(Path(root).absolute())
    return read_files(spark, archive, archive.files())


def read_files(spark: SparkSession, archive: ArchiveDirectory, files: Sequence[ArchiveFile]) -> DataFrame:
    """Return the messages of some of an archive's files.

    Raises:
        NotAnArchive: the directory is not an archive, or a file that a manifest names is missing.
    """
    schema = spark_schema(archive.existing().partition_by)
    missing = [file.path for file in files if not (archive.root / file.path).is_file()]
    if missing:
        raise NotAnArchive(
            f"{archive.root} lacks {counted(len(missing), 'file')} that its manifests name, the first is {missing[0]}"
        )
    if not files:
        return spark.createDataFrame([], schema)
    paths = [str(archive.root / file.path) for file in files]
    reader = spark.read.schema(schema).option("basePath", str(archive.root))
    with setting(spark, DISCOVERY, str(len(paths))):
        frame = reader.parquet(*paths)
    return _with_whole_values(frame, [file for file in files if is_cut(file.path)])


def _with_whole_values(frame: DataFrame, cut: Sequence[ArchiveFile]) -> DataFrame:
    """Restore values that were cut in the names of directories: topics by the manifests, tags by the messages."""
    from pyspark.sql import functions as f

    values = [(file.topic, partition_values(file.path)) for file in cut]
    topics = {str(value["topic"]): topic for topic, value in values if is_cut(str(value["topic"]))}
    if topics:
        whole = f.create_map(*(f.lit(text) for text in chain.from_iterable(topics.items())))
        frame = frame.withColumn("topic", f.coalesce(f.element_at(whole, f.col("topic")), "topic"))
    if any(is_cut(value.get("tags") or "") for _, value in values):
        whole = f.element_at("properties", "TAGS")
        frame = frame.withColumn("tags", f.when(f.col("tags").contains("%~"), whole).otherwise(f.col("tags")))
    return frame
