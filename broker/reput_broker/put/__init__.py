"""From a put to a message that is acknowledged and readable; `put_path` builds it.

`appender` appends the puts of clients under the `put_lock`, and `own_puts` those of the broker itself; while the
`fence` is closed, because another broker may be the master, the first refuses and the second waits. `flush_service`
syncs the log and writes the buffers of a pool, and `reput_service` dispatches the log into the queues. `progress` holds
how far each of them is, with the `pending_puts` that wait for it. `arrivals` wakes services for new messages of their
topics. `store_tasks` makes files ahead, syncs queues and writes the checkpoint.
"""
