"""The broker as a client of others (RocketMQ: the module remoting).

- `client`: requests to other brokers and name servers
- `tls`: the certificates, for the ports of the broker and for its connections to others
"""
