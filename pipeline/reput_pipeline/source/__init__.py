"""Reading topics into Spark.

`options` are parsed, `ranges` turns them into ranges of queues, `live` (a cluster) and `offline` (a store directory)
share the ranges out to `tasks`, which run in the workers. `readers` is what Spark calls.
"""
