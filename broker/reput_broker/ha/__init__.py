"""Replication: a master sends its log to slaves, byte for byte (RocketMQ: DefaultHAService).

The master's side: `service` has a connection for each slave that `admission` admits and counts what is replicated, and
how far slaves are behind; `replica_state` describes the log to slaves and answers with tables.
The slave's side: `client` compares both logs (`epochs`), copies what is missing or has the store
opened again (`reopen`); `slave_synchronize` takes over the tables, if the answer has the `master_proof`.
Both: `frames` is the log on the wire, `role_refusals` refuses what the role of the broker does not permit. `election`
decides which member of a group is the master.
"""
