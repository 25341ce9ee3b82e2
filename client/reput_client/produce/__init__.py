"""The producer, transactions, requests and replies, and the batch writer of the Spark sink.

A plain `send` (and `send_oneway`, `request`, `forward`) goes from `producer` through `puts` to the connection. What
gathers (`post`, a lingering `send`, sends of many) goes into a `block` of the `accumulator` and through `sender` to the
`link` of its broker.
"""
