"""From a put to a message that is acknowledged and readable; `put_path` builds it.

`appender` appends the puts of clients under the `put_lock`, which has those of the broker itself too; while its fence
is closed, because another broker may be the master, the first refuses and the second waits. The services of
`put_path` sync the log, write the buffers of a pool, dispatch the log into the queues, make files ahead, sync queues
and write the checkpoint. `progress` holds how far each of them is, with the puts that wait for it; `held_pulls` has
the pulls that wait for messages, and what pulls and pops share.
"""
