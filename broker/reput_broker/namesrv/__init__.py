"""The name service: which brokers there are, and which of them has a topic (RocketMQ: namesrv).

`route_info` is the table of brokers and topics, `processor` answers from it; `own_broker` describes the broker that
the name service runs in, `members` the others of its group. `registration` announces a broker to name servers.
"""
