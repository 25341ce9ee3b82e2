"""The web console at /console/ on the HTTP port.

`app` has its routes and guards them; `figures` samples the live numbers and streams them. What the pages show is in
`messages`, `reading`, `dead_letters` and, for the others, `pages`; `actions` are what they change. They ask the broker
through a client (`own_client`), with the rights of their user (`server.local_requests`), so that each figure has one
definition, and every right, refusal and limit counts here too. `static/` is the page itself, without a build step.
"""
