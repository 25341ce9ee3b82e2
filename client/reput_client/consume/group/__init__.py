"""A group member: joining, dividing, taking and giving up queues, delivering messages, committing.

`member` puts the parts together. `membership` keeps it in the group, `rebalance` computes its queues by a rule of
`allocation`, `handover` takes and gives them up (in order with `queue_locks`), `fetcher` pulls, `serving` decides which
message is next, `handling` hands it to the application, and `commits` stores the progress.
"""
