"""A group member: `consumer` is its API and calls handlers, `member` puts its parts together and gives out messages.

`membership` keeps it in the group, `rebalance` computes its queues by a rule of `allocation`, `handover` takes and
gives them up, in order under locks, `fetcher` pulls, `serving` decides which message is next, `failures` gives messages
back, `commits` stores the progress. `assigned_queue` is the state of one queue, which all of them share.
"""
