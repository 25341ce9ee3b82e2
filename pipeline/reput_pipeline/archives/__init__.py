"""Archives: Parquet files whose names tell their contents, with a manifest for every batch.

`batches` decides what a batch is and runs its tasks, `manifests` records it, `read` returns a DataFrame; `layout` has
the names and columns of the files. An archive is in a `directory` or a `bucket`.
"""
