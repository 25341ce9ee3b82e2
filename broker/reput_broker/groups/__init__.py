"""Consumer and producer groups (RocketMQ: ConsumerManager, ProducerManager, RebalanceLockManager).

`group_state` holds what is known of consumer groups. `client_table` has the connected clients, `consumer_groups` and
`producer_groups` their groups, `membership` keeps these in step, `notifications` notifies members of changes.
`queue_locks` are the locks of ordered consumers; `offset_updates` commits and resets offsets; `progress` and `lag` are
for monitoring; `reply_push` delivers replies to requesters.
"""
