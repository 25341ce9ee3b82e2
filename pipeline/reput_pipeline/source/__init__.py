"""Reading topics into Spark.

`options` are parsed, `resolve` turns them into ranges of queues, `live_plan` and `offline_plan` share the ranges out
to `tasks`, which run in the workers. `readers` is what Spark calls. `live_*` is a cluster, `offline_*` a store
directory.
"""
