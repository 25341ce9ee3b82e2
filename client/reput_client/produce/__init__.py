"""The producer, transactions, requests and replies, and the Spark sink's batches.

Messages go in blocks: those of `send` and `post` (`gathering`) gather in an open `block` of the `accumulator`; sends of
many (`many`) and `send_batch` divide their messages into the `contents` of blocks themselves. `send_oneway`, `request`,
`forward` and half messages are blocks of one; what `staging_producer` stages are blocks for its broker. `block_sender`
gives each block to the `link` of its broker, which sends it.
"""
