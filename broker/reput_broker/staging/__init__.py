"""Records staged outside the log and published as one batch, exactly once (for Spark's sink).

`requests` handles the requests; `staging_table` and `staging_file` hold the staged records; `committer` commits a
batch: `decision` and `intent` record that it is decided, `publisher` appends it, `batches` remembers the last one of
each query. `queue_records` reads queues at a start; `staging_state` is what the disk has, `parts` builds all of it.
"""
