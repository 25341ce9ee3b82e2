"""Reput and Spark.

`data_source` is Spark's format `reput`; `source/` reads topics and store directories, `sink/` writes to topics,
`archives/` are Parquet copies of topics, `jobs/` the programs, `spark/` what all of them have to do with Spark.
Nothing is imported here: Spark imports this package in every worker.
"""
