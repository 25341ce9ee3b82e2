"""The name service: which brokers there are, and which of them has a topic (RocketMQ: namesrv).

`route_info` is the table of brokers and topics; `own_broker` describes the broker that the name service runs in.
`registration` announces a broker to name servers.
"""
