"""The ConsumeQueues.

table: all queues, and look-ups in them. consume_queue: one queue. extension: extended entries.
files: the sparse files below both. reput: follows the log and dispatches it, by builder to the
queues. search: look-ups by offset and time. recovery: valid end after a start. Deletion is in
`cleaners`.
"""
