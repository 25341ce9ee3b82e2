"""Replication: a master sends its log to slaves, byte for byte (RocketMQ: DefaultHAService).

`roles` says what a broker is now, and which master a slave follows; `election` decides that in a group. Of a master:
`service` has a `connection` for each slave, `copies` says what is replicated, `progress` how far the slaves are behind.
Of a slave: `client` compares the `history` of both logs (`epochs`), copies what is missing (`received_log`) or lets the
store be opened again (`set_aside`); `synchronize` takes over the tables. `frames` is what both send.
"""
