"""Records staged outside the log and published as one batch, exactly once (for Spark's sink).

`feature` has the requests; `staging_file` holds the staged records; `committer` commits a
batch: `publisher` copies it for another master and appends it, `batches` has the markers that decide and close it, and
remembers the last one of each query.
"""
