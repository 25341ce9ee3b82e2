"""What streaming queries do, as Prometheus series of the driver.

| Series | Meaning |
|---|---|
| `reput_query_running` | 1 while the query runs |
| `reput_query_failures_total` | how often an error has ended it |
| `reput_query_messages_total` | messages read |
| `reput_query_body_bytes_total` | bytes of their bodies, of queries over `observed(frame)` |
| `reput_query_batch_seconds` | `_count` and `_sum` of batches and the time of their triggers |
| `reput_query_lag_messages`, `reput_query_lag_seconds` | by topic: unread messages, and the age of the oldest |

All have the label `query`: its name, or its id. A query has series from its first batch on, so one that hangs in its
first batch after a start of the driver has no lag.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Summary, start_http_server
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from reput_client.arrow.queues import QueueKey
from reput_client.security import TLS
from reput_pipeline.source.progress import Batch, BatchListener, lags
from reput_pipeline.spark.errors import note
from reput_protocol.errors import ReputError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_OBSERVATION: Final = "reput"
_ASK_S: Final = 5.0
"""Prometheus waits for 10 s."""


def observed(frame: DataFrame) -> DataFrame:
    """Have Spark count rows and bytes of bodies of each trigger: `observedMetrics["reput"]` in a query's progress.

    Args:
        frame: has the column `body`; the observation is where the frame stands in the plan of the query.
    """
    from pyspark.sql import functions as f

    size = f.coalesce(f.sum(f.octet_length("body")), f.lit(0))
    return frame.observe(_OBSERVATION, f.count(f.lit(1)).alias("rows"), size.alias("bytes"))


class QueryMetrics(BatchListener):
    """Serves Prometheus series of streaming queries: `spark.streams.addListener(QueryMetrics(...))`.

    The lag is measured whenever the page is read, so that it also grows while a query is stuck. A broker that cannot
    be asked is noted in stderr, and the page then has no lag. The page has no access control; each reading asks the
    brokers.

    Args:
        name_server: address of the broker.
        port: where the driver serves `/metrics`; 0 chooses one (`port`).
        host: the address that it binds; `0.0.0.0` if a Prometheus on another machine reads it.
        query: name of the query; None: every query over this source.
        tls: how to encrypt what the broker is asked; None: not at all.

    Raises:
        OSError: the port is taken.
    """

    def __init__(
        self, name_server: str, port: int, host: str = "127.0.0.1", query: str | None = None, tls: TLS | None = None
    ) -> None:
        super().__init__(name_server, query, tls)
        registry = CollectorRegistry()
        self._ends: dict[str, dict[QueueKey, int]] = {}
        self._runs: dict[str, str] = {}
        """The latest run of each query, by its id: the end of an earlier one may be told after its start."""
        self._names: dict[str, str] = {}
        of_query: dict[str, Any] = {"labelnames": ["query"], "registry": registry}
        self._running = Gauge("reput_query_running", "1 while the query runs", **of_query)
        self._failures = Counter("reput_query_failures", "How often an error has ended the query", **of_query)
        self._messages = Counter("reput_query_messages", "Messages read", **of_query)
        self._bytes = Counter("reput_query_body_bytes", "Bytes of the bodies that were read", **of_query)
        self._seconds = Summary("reput_query_batch_seconds", "Batches, and the time of their triggers", **of_query)
        registry.register(_LagOnRequest(self))
        self._server, self._thread = start_http_server(port, host, registry)

    @property
    def port(self) -> int:
        """Where `/metrics` is served."""
        return int(self._server.server_port)

    def close(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @override
    def onQueryStarted(self, event: Any) -> None:
        self._runs[str(event.id)] = str(event.runId)
        self._show_running(str(event.id), 1)

    @override
    def onQueryProgress(self, event: Any) -> None:
        super().onQueryProgress(event)
        query_id = str(event.progress.id)
        name = event.progress.name or query_id
        if name in self._ends and query_id not in self._names:
            self._names[query_id] = name
            self._failures.labels(name)
            self._show_running(query_id, 1)

    @override
    def ended(self, batch: Batch) -> None:
        # A new value each time: a reading of the page may use the last one.
        before = {} if batch.is_first else self._ends.get(batch.query, {})
        both = [queue for queue in batch.ends if queue in before]
        self._ends[batch.query] = before | batch.ends | {q: min(before[q], batch.ends[q]) for q in both}
        self._messages.labels(batch.query).inc(batch.messages)
        if not batch.is_first:
            return
        self._seconds.labels(batch.query).observe(batch.seconds)
        seen = batch.observed.get(_OBSERVATION)
        if seen is not None:
            self._bytes.labels(batch.query).inc(seen["bytes"])

    @override
    def onQueryTerminated(self, event: Any) -> None:
        query_id = str(event.id)
        if event.exception is not None and query_id in self._names:
            self._failures.labels(self._names[query_id]).inc()
        if self._runs.get(query_id, str(event.runId)) == str(event.runId):
            self._show_running(query_id, 0)

    def _show_running(self, query_id: str, value: int) -> None:
        name = self._names.get(query_id)
        if name is not None:
            self._running.labels(name).set(value)

    def lag(self) -> Iterator[Metric]:
        """Measure how far the queries are behind."""
        messages = GaugeMetricFamily("reput_query_lag_messages", "Unread messages", labels=["query", "topic"])
        seconds = GaugeMetricFamily(
            "reput_query_lag_seconds", "Age of the oldest unread message", labels=["query", "topic"]
        )
        give_up_at = time.monotonic() + _ASK_S
        for query, ends in list(self._ends.items()):
            try:
                with self.reader(max(0.1, give_up_at - time.monotonic())) as reader:
                    for lag in lags(reader, ends, give_up_at):
                        messages.add_metric([query, lag.topic], lag.messages)
                        seconds.add_metric([query, lag.topic], lag.seconds)
            except (ReputError, TimeoutError) as error:
                note(f"{type(self).__name__} of {self._name_server}: {error}")
        yield messages
        yield seconds


class _LagOnRequest(Collector):
    def __init__(self, metrics: QueryMetrics) -> None:
        self._metrics = metrics

    @override
    def collect(self) -> Iterator[Metric]:
        return self._metrics.lag()
