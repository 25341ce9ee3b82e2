"""The message store: synchronous, no trio, no sockets.

`message_store` is its API. `message_writer` puts a `block` into the `log`, `reput` follows the log and hands each
batch (`dispatch`) to the ConsumeQueues (`queue`) and the `index`; `message_reader` and `select_entries` read. `flush`
syncs, `checkpoint` notes how far. `opening` locks and recovers a directory, `cleaners` delete files by the rules of
`retention`. `running_flags` says whether puts are accepted, and why not. `options` are given, `results` returned.
"""
