"""The broker's servers.

`listener` accepts connections (`acceptor`). A new connection passes the `gate` (`proxy_protocol`, TLS); then a
`connection` reads frames through its `transport`, has `handling` find the handler of each request, and writes answers
through its `outbox`; `client_calls` sends requests to the client. `frame_intake` tells how fast a frame arrives,
and lets one connection at a time receive a large one. `local_requests` are those of the
broker's own pages. `memory` bounds what is held for clients, `strangers` what a connection may do before its first
request of a user, and `crowd` finds the one to close if there are too many. `http_server` serves the HTTP port.
`connection_refusals` logs connections that are refused.
"""
