"""Read the complete batches of an archive."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from reput_pipeline.archives.columns import spark_schema
from reput_pipeline.archives.manifests import ArchiveDirectory
from reput_pipeline.spark.errors import NotAnArchive
from reput_protocol.printable import counted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_archive(spark: SparkSession, root: str | Path) -> DataFrame:
    """Return the messages of an archive, with the source's native columns.

    Raises:
        NotAnArchive: the directory is not an archive, or a file that a manifest names is missing.
    """
    archive = ArchiveDirectory(Path(root).absolute())
    kind = archive.existing()
    schema = spark_schema(kind.partition_by)
    files = archive.files()
    missing = [file.path for file in files if not (archive.root / file.path).is_file()]
    if missing:
        raise NotAnArchive(
            f"{archive.root} lacks {counted(len(missing), 'file')} that its manifests name, the first is {missing[0]}"
        )
    if not files:
        return spark.createDataFrame([], schema)
    paths = [str(archive.root / file.path) for file in files]
    return spark.read.schema(schema).option("basePath", str(archive.root)).parquet(*paths)
