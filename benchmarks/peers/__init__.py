"""Reput compared with other brokers on this machine, each through its usual Python client: `make bench KIND=peers`.

`run` is the program; `workloads` and `systems` list what is measured, `measure` does it with the `servers` and, in
`worker` processes, the `drivers`; `table` prints. `java_benchmark` is RocketMQ's own benchmark.
"""
