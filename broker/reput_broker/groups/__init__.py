"""Consumer and producer groups (RocketMQ: ConsumerManager, ProducerManager, RebalanceLockManager).

`group_state` holds what is known of consumer groups, `group_access` finds the one that a request names. `client_table`
has the connected clients, `consumer_groups` and `producer_groups` their groups, `membership` keeps these in step,
`awaited_members` are those of the last master, `notifications` notifies members of changes. `queue_locks` are the locks
of ordered consumers; `offset_updates` commits and resets offsets; `progress` has the positions of groups, `lag` how
many messages wait for them; `cold_quotas` bounds reads of old messages; `requesters` finds the clients that wait for
replies.
"""
