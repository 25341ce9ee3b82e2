"""The message store: synchronous, no trio, no sockets.

`message_store` is its API. `message_writer` puts blocks into the `log`; `queue.reput` follows the log and hands each
batch to the ConsumeQueues (`queue`) and, by `store_index`, to the `index`; `message_reader` and `select_entries` read.
`flush` syncs. `opening` locks and recovers a directory, `cleaners` delete files by the rules of `retention`. `base` is
what all of these need: options, errors, results, the checkpoint, files.
"""
