"""What an operator sees: metrics, health, pages, spans and the log.

`counters` are added to where the work happens; `catalogue` and `rocketmq_catalogue` have a row for each metric of the
two pages, `metrics` is where their values come from, `exposition` writes them. `pages` are the pages of the HTTP port,
`health` the state behind its probes, `figures` what tasks look up in files.
"""
