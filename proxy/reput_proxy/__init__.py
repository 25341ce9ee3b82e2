"""RocketMQ 5's gRPC service in front of brokers: `reput proxy` (docs/compatibility.md, gRPC clients).

`server` runs a `Proxy` (the state, in `proxy`) for the command; `__main__` does that in the process that a broker
starts, and writes to the broker. `service` has the methods: it makes a `Call` of each request and passes it to the
module of its kind (`routes`, `sending`, `receiving`, `pulling`, `telemetry`). These convert with `messages` and
`rejections`, and use the `Upstream` of the user: the client's connections to the brokers, with the `pops` that waiting
clients share, the transactions, and the settings of topics and groups. `clients` has the streams of clients and the
messages that they have.
"""
