"""Replication: a master sends its log to slaves, byte for byte (RocketMQ: DefaultHAService).

`roles` defines a broker's role, and the master that a slave follows; `election` decides that in a group. Of a master:
`service` has a `connection` for each slave, `copies` counts what is replicated, `progress` how far slaves are behind.
Of a slave: `client` compares the `history` of both logs (`epochs`), copies what is missing (`received_log`) or has
the store opened again (`reopen`); `synchronize` takes over the tables. `frames` is what both send.
"""
