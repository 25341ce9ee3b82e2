"""Processors of requests, a file each per family; those of a feature are in the folder of the feature.

Messages: `send` stores them, `pull` and `fetch` read queues, `query` finds single ones; `spans` traces them.
Queues and groups: `offset`, `group_members`, `group_settings`. `client` has
heartbeats and the locks of queues, `topic` the topics. The broker itself: `runtime_info` and `properties` (RocketMQ's
requests), `operations` (ours).
"""
