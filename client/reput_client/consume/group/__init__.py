"""A group member: `consumer` is its API, `member` puts its parts together.

`membership` keeps it in the group, `rebalance` computes its queues by a rule of `allocation`, `handover` takes and
gives them up (in order with `queue_locks`), `fetcher` pulls, `serving` decides which message is next, `taking` gives it
to the caller, `handling` calls a handler with it (`failures` and `overdue` give messages back), `commits` stores the
progress. `assigned_queue` is the state of one queue, which all of them share.
"""
