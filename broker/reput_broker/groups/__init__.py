"""Consumer and producer groups (RocketMQ: ConsumerManager, ProducerManager, RebalanceLockManager).

`group_state` holds what is known of consumer groups, finds the one that a request names, and says whether groups
consume as they should. `client_table` has the connected clients, and those that wait for replies; `consumer_groups`
the consumers. `membership` keeps these and the producers in step, awaits the members that the last master had, and
notifies members of changes. `queue_locks` are the locks of ordered consumers; `offset_updates` commits and resets
offsets; `lag` has the positions of groups and how many messages wait for them; `cold_quotas` bounds reads of old
messages.
"""
