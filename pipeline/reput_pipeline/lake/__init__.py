"""Tables of a lakehouse, written without Spark: each commit holds rows and the progress that they belong to.

`copying` reads batches and commits them, `table` is what it needs of a format, `delta` and `iceberg` are the formats.
"""
