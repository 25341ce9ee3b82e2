"""Appends to the log and their acknowledgement.

`appender` appends puts under the `put_lock` (`own_puts`: those of the broker itself) and answers
them; `pending_puts` wait for `flush_service` or `commit_service`. `log_services` dispatch the log,
make files ahead and sync the queues.
"""
