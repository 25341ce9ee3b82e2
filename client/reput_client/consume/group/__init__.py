"""A group member; `member` puts its parts together.

`membership` keeps it in the group, `rebalance` computes its queues by a rule of `allocation`, `handover` takes and
gives them up (in order with `queue_locks`), `fetcher` pulls, `serving` decides which message is next, `handling` hands
it to the application, `commits` stores the progress.
"""
