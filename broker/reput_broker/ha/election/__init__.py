"""Failover: an engine that exists already decides which member of a group is the master.

`engine` is what is needed of one, `etcd` is one; `in_sync_set` says which members have every
confirmed message; `elector` campaigns, keeps the lease and says what the broker is; `fence` ends acknowledgements with
the lease.
"""
