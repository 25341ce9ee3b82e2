"""The producer, transactions, requests and replies, and the batch writer of the Spark sink.

Messages go in blocks: those of `send` and `post` (`posts`) gather in an open `block` of the `accumulator`; sends of
many (`many`) and `send_batch` divide their messages into blocks themselves. `block_sender` gives each block to the
`link` of its broker, which sends it. `send_oneway`, `request`, `forward` and transactions send single frames by `puts`;
`placement` chooses their queue.
"""
