"""Failover: an external engine decides which member of a group is the master.

`engine` is the interface, with the record that it keeps; `etcd` and `kubernetes` implement it, over `endpoints` (HTTP).
`elector` follows the record and says what the broker is; `candidacy` has the rules of campaigning, `mastership` is the
time of one elected master: its lease, the recording of the in-sync set, the hand-over. `in_sync_set` says which members
have every confirmed message and table, and moves the confirm offset by it. `member_file` is the
identity of a data directory. The fence, by which the lease ends acknowledgements, is in `put`, which asks it.
"""
