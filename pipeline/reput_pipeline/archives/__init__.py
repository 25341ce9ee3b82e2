"""Archives: Parquet files whose names tell their contents, with a manifest for every batch.

`plan` decides what a batch is, `write` runs its tasks, `manifests` records it, `read` returns a DataFrame; `names` and
`columns` are the layout of the files.
"""
