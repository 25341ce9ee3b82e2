"""Typed headers and JSON bodies of requests and answers, by family; see docs/protocol.md.

Each family ends with the rows of its requests, which `table` joins; `base` has the type of a row and the base classes
of headers and bodies, and finds the topics and groups that a request names.

Producers: `send`, `transaction`, `reply`, `delay`; `stage` for Spark's sink. Consumers: `pull`, `pop`, `offset`;
`group` has what members send and the settings of a group, `consumers` the progress of groups and the state of one
member, `group_description` the lists of groups, members and producers. `topic` and `query` are about topics and
single messages, `operation` about one broker, `statistics` about rates and the past days, `users` about access
control. Brokers and name servers: `namesrv`, and between a master and its slaves `replica`.
"""
