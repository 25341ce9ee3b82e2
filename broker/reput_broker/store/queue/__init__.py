"""The ConsumeQueues.

table: all queues, and look-ups in them. consume_queue: one queue, and look-ups by offset and time. extension: extended
entries. files: the sparse files below both, and their valid end after a start. reput: follows the log and dispatches it
to the queues. Deletion is in `retention`.
"""
