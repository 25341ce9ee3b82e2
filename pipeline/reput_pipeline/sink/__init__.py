"""Writing DataFrames to topics.

Spark calls `writers`; `task` writes a partition, `rows` makes messages of it and encodes them. `schema` and
`options` check the arguments.
"""
