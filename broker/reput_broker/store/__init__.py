"""The message store: synchronous, no trio, no sockets.

`message_store` is its API. `message_writer` puts blocks into the `log`, and syncs; `queue.reput` follows the log and
hands each batch to the ConsumeQueues (`queue`) and to the `index`; `message_reader` reads. `opening` locks and recovers
a directory, `retention` deletes files. `base` is what all of these need: options, errors, results, the checkpoint,
files.
"""
