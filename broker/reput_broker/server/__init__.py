"""The broker's servers.

`listener` serves connections. A new one is accepted at the `gate` (PROXY protocol, TLS); then a `connection` reads
frames through its `transport`, has `handling` find the handler of each request, and writes answers, and requests to
the client, through the transport's outbox. `local_requests` are those of the broker's own pages. `memory` bounds what
is held for clients; `connection_limits` finds the connection to close if there are too many, limits what one may do
before its first request of a user, and logs refusals. `http_server` serves the HTTP port.
"""
