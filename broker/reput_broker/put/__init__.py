"""Appends to the log, until they are acknowledged and readable.

`appender` appends puts under the `put_lock` (`own_puts`: those of the broker itself) and answers them; `pending_puts`
wait for `flush_service` or `commit_service`. `reput_service` dispatches the log into the queues.
"""
