"""Processors of requests, a file each per family; those of a feature are in the folder of the feature.

Messages: `send` stores them, `pull` reads queues, `query` finds single ones and reads in bulk; `spans` traces them.
Queues and groups: `offset`, `client` (heartbeats, members, the locks of queues), `settings` of groups and topics. The
broker itself: `runtime_info` (RocketMQ's requests) and `operations` (ours, and the configuration).
"""
