"""Replication: a master sends its log to slaves, byte for byte (RocketMQ: DefaultHAService).

`roles` says what a broker is now, and which master a slave follows; `synchronize` takes over its tables.
"""
