"""The broker's servers.

`listener` accepts connections (`acceptor`); a `connection` reads frames through its `transport`, hands requests to
`dispatch` and writes answers through its `outbox`. `memory` bounds what is held for clients, `calls` are
requests of the broker to a client. `http_server` serves the HTTP port.
"""
