"""Records staged outside the log and published as one batch, exactly once (for Spark's sink).

`feature` has the requests; `staging_file` holds the staged records; `committer` commits a batch: `batches` has the
markers that decide and close it, copies it for another master, appends it, and remembers the last one of each query.
"""
