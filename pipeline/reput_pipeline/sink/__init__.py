"""Writing DataFrames to topics.

Spark calls `writers`; `task` writes a partition, `rows` makes messages of it and encodes them. `options`
checks the arguments.
"""
