"""The page of metrics, from their catalogue."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby

from reput_broker.observe.catalogue import METRICS
from reput_broker.observe.exposition import MetricSpec
from reput_broker.observe.rocketmq_catalogue import ROCKETMQ_METRICS

HEAD = """\
# Metrics

`GET /metrics` on the HTTP port has these series, in the text format of Prometheus or, if asked for,
of OpenMetrics. Times are in seconds, sizes in bytes, ratios from 0 to 1. Series with known label
values exist from the start with 0. Retry and dead-letter topics have their real name in `topic`.

Series of topics, groups and queues are limited to `metrics.max_series`. Beyond it, series of queues
are left out first, then the histograms of topics; `reput_metrics_dropped_series` counts them. A
page of 20,000 series takes about 50 ms of the event loop, in pieces of about a millisecond
(`make bench KIND=memory`).

`reput generate alerts` and `reput generate grafana` print alerts and a dashboard that use them; the
alerts are explained in the [runbook](../runbook.md). The page also has the standard series `process_*`
and `python_*`.
"""


ROCKETMQ_HEAD = """
## RocketMQ's names

`GET /metrics/rocketmq` has the names of RocketMQ 5.3's Prometheus exporter, for dashboards that use
them; RocketMQ's port for them is 5557. Scrape one of the two pages, or drop one by its name. All
series have the labels `cluster`, `node_type` (`broker`) and `node_id` (the broker's name); those of
the store and of delayed messages also `storage_type` (`local`) and `storage_medium` (`disk`).

Not there: `rocketmq_consumer_queueing_latency_milliseconds`,
`rocketmq_timer_enqueue_latency_milliseconds`, `rocketmq_timer_dequeue_lag`,
`rocketmq_timer_message_snapshot`, and the metrics of POP and RocksDB. `rocketmq_storage_size_bytes`
is the size of the store; RocketMQ's is what the whole disk has in use.
"""
_COMMON = ("cluster", "node_type", "node_id", "storage_type", "storage_medium")


def page() -> str:
    """Return the page."""
    return "".join((HEAD, *_sections(METRICS, 2), ROCKETMQ_HEAD, *_sections(ROCKETMQ_METRICS, 3)))


def _sections(catalogue: Mapping[str, MetricSpec], depth: int) -> Iterator[str]:
    for section, specs in groupby(catalogue.values(), key=lambda spec: spec.section):
        yield f"\n{'#' * depth} {section}\n\n| Name | Type | Labels | Meaning |\n|---|---|---|---|\n"
        yield from map(_row, specs)


def _row(spec: MetricSpec) -> str:
    labels = "; ".join(
        f"`{label}`" + (f": {', '.join(values)}" if values else "")
        for label, values in spec.labels.items()
        if label not in _COMMON
    )
    kind = spec.type + (f" {' '.join(f'{bound:.12g}' for bound in spec.buckets)}" if spec.buckets else "")
    return f"| `{spec.name}` | {kind} | {labels} | {spec.help} |\n"
