"""Writing DataFrames to topics.

`writers` is what Spark calls; `task` writes a partition, `rows` turns it into messages and `record_blocks` encodes
them. `schema` and `options` check what was given.
"""
