"""The name service: which brokers there are, and which of them has a topic (RocketMQ: namesrv).

`route_info` is the table of brokers and topics, `processor` answers from it; `members` are the other brokers of the own
one's group. `registration` describes the broker that the name service runs in, and announces it to name servers.
"""
