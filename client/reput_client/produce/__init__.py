"""The producer, transactions, requests and replies, and the batch writer of the Spark sink.

A plain `send` (and `send_oneway`, `request`, `forward`) goes from `producer` through `puts` to the connection;
`placement` chooses its queue. Other messages go in blocks: those of `post` (`posts`) and of a `send` that lingers
gather in an open `block` of the `accumulator`; sends of many (`many`) and `send_batch` divide their messages into
blocks themselves. `block_sender` gives each block to the `link` of its broker, which sends it.
"""
