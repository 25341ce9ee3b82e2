"""Requests (RocketMQ: the module remoting).

- `request`: a request as its handler sees it, its client, and its responses
- `client`: requests to other brokers and name servers
- `tls`: the certificates, for the ports of the broker and for its connections to others
"""
