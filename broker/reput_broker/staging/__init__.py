"""Records staged outside the log and published as one batch, exactly once (for Spark's sink).

`feature` has the requests; `staging_table` and `staging_file` hold the staged records; `committer` commits a
batch: `intent` is the marker that decides it and its progress, `copies` are for another master, `publisher` appends it,
`batches` remembers the last one of each query. `queue_records` reads queues at a start.
"""
