"""Metrics, health, pages and the log.

`counters` are added to where the work happens; `figures` are looked up at intervals; `metrics`, with
`delivery_metrics`, turns both into the series of `families`. `pages` are the pages of the HTTP port, `health` the
checks behind readiness, `log` the log, which `log_writer` writes.
"""
