"""Every series of /metrics: name, type, labels, meaning. The page, its tests and the docs use this table.

Names are a public interface: `snake_case`, the unit as the last word before `_total`, base units only. The name of a
counter includes its `_total`. `kind` is `normal` unless the topic is a retry (`retry`) or dead-letter (`dlq`) topic or
the message was of another sort.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from math import inf, isinf
from typing import Literal, NamedTuple

from prometheus_client import Metric

from reput_broker.observe.counters import Histogram


class MetricSpec(NamedTuple):
    """One metric family."""

    name: str
    type: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    help: str


def _gauge(name: str, text: str, *labels: str) -> MetricSpec:
    return MetricSpec(name, "gauge", labels, text)


def _counter(name: str, text: str, *labels: str) -> MetricSpec:
    return MetricSpec(name, "counter", labels, text)


def _histogram(name: str, text: str, *labels: str) -> MetricSpec:
    return MetricSpec(name, "histogram", labels, text)


_TABLE = (
    # Process and build
    _gauge(
        "reput_build_info", "Always 1; join on it for the version.", "version", "python", "commit", "kernel"
    ),
    _gauge("reput_start_time_seconds", "Unix time at which the broker started."),
    _gauge("reput_ready", "1 while /readyz answers 200."),
    _gauge("reput_state", "1 for what the broker is doing, 0 for the rest.", "state"),
    _histogram("reput_event_loop_delay_seconds", "How late a periodic task of the event loop woke."),
    # Traffic
    _counter("reput_messages_in_total", "Messages accepted.", "topic", "kind"),
    _counter("reput_messages_out_total", "Messages delivered to consumers.", "topic", "group", "kind"),
    _counter("reput_bytes_in_total", "Bytes of accepted messages as they are stored.", "topic"),
    _counter(
        "reput_duplicates_rejected_total",
        "Messages sent again that were answered with the receipt of the first time.",
        "topic",
    ),
    _counter("reput_bytes_out_total", "Bytes of messages delivered to consumers.", "topic", "group"),
    _histogram(
        "reput_message_size_bytes",
        "Size of stored messages; messages of one block count with their mean.",
        "topic",
    ),
    _histogram("reput_produce_duration_seconds", "From a put's frame read to its answer queued.", "ack"),
    _histogram(
        "reput_deliver_latency_seconds", "From stored to delivered, readers at the tail only.", "topic"
    ),
    _counter("reput_messages_rejected_total", "Messages refused.", "reason"),
    # Requests and connections
    _counter(
        "reput_requests_total",
        "Requests answered; code is ok or the refusal's name.",
        "protocol",
        "op",
        "code",
    ),
    _histogram(
        "reput_request_duration_seconds",
        "From a request read to its answer queued; held pulls under pull_wait.",
        "protocol",
        "op",
    ),
    _gauge("reput_requests_inflight", "Requests read and not answered yet.", "protocol", "op"),
    _gauge("reput_connections", "Open connections.", "listener", "role"),
    _counter("reput_connections_opened_total", "Connections accepted.", "listener"),
    _counter("reput_connections_closed_total", "Connections ended, and why.", "listener", "reason"),
    _counter("reput_protocol_errors_total", "Malformed or oversized frames.", "protocol", "reason"),
    _counter("reput_network_bytes_total", "Bytes of frames read and written.", "listener", "direction"),
    # Name servers
    _gauge("reput_registered_brokers", "Brokers that are registered with this name service."),
    _gauge("reput_name_server_registered", "1 while the broker is registered there.", "name_server"),
    _counter(
        "reput_name_server_registrations_total",
        "Registrations there; result is ok or failed.",
        "name_server",
        "result",
    ),
    # Queues and consumers
    _gauge("reput_queue_start_offset", "Queue offset of the oldest message.", "topic", "queue"),
    _gauge("reput_queue_end_offset", "Queue offset that the next message gets.", "topic", "queue"),
    _gauge("reput_consumer_committed_offset", "Next offset to consume.", "group", "topic", "queue"),
    _gauge("reput_consumer_lag_messages", "End offset minus committed offset.", "group", "topic", "queue"),
    _gauge(
        "reput_consumer_lag_seconds",
        "Age of the oldest message that is not committed, 0 if there is none.",
        "group",
        "topic",
    ),
    _gauge("reput_consumer_lag_refresh_time_seconds", "Unix time at which these ages were looked up."),
    _gauge("reput_consumer_inflight_messages", "Messages pulled and not committed.", "group", "topic"),
    _gauge("reput_consumer_ready_messages", "Messages that could be pulled now.", "group", "topic"),
    _gauge("reput_consumer_members", "Members online.", "group"),
    _counter(
        "reput_rebalances_total",
        "Changes of a group after which its members rebalance the queues.",
        "group",
        "reason",
    ),
    _counter(
        "reput_subscription_conflicts_total",
        "Heartbeats of members that subscribe to something else than another member of their group.",
        "group",
    ),
    # Retries, dead letters, transactions
    _counter(
        "reput_retries_total", "Messages sent back, by the topic they were sent to first.", "group", "topic"
    ),
    _counter("reput_dead_letters_total", "Messages that became dead letters, likewise.", "group", "topic"),
    _gauge("reput_transactions_open", "Half messages not decided.", "topic"),
    _counter(
        "reput_transactions_total",
        "Transactions ended; timeout: the producer did not end it, and the message was discarded.",
        "topic",
        "result",
    ),
    _counter(
        "reput_transaction_checks_total",
        "Answers to transaction checks; no_producer: no producer was connected.",
        "topic",
        "result",
    ),
    # Request and reply
    _counter(
        "reput_replies_total",
        "Replies to requests; no_requester: the requester was not connected, not_taken: it did not answer.",
        "result",
    ),
    # Delays
    _gauge(
        "reput_delayed_messages",
        "Delayed messages; complete some time after a start.",
        "topic",
    ),
    _gauge("reput_delayed_due_seconds", "How late the most overdue message that waits is, 0 if none is due."),
    _counter("reput_delayed_delivered_total", "Delayed messages delivered.", "topic"),
    _counter("reput_delayed_cancelled_total", "Delayed messages cancelled.", "topic"),
    _counter(
        "reput_delayed_dropped_total",
        "Delayed messages that will not be delivered: no_topic, lost, unreadable, refused.",
        "reason",
    ),
    _histogram("reput_delay_error_seconds", "From when a delayed message was due to when it was put."),
    # Replication
    _gauge("reput_role", "1 for the role of the broker, 0 for the rest.", "role"),
    _gauge("reput_epoch", "The epoch of the last master of this log, as far as the broker knows."),
    _gauge("reput_replication_slaves", "Of a master: connected slaves."),
    _gauge(
        "reput_replication_copies_in_sync",
        "Of a master: copies of the log that are in sync, its own included.",
    ),
    _gauge(
        "reput_replication_copies_wanted", "Of a master: copies that replicated puts need: in_sync_replicas."
    ),
    _gauge(
        "reput_replicated_offset_bytes",
        "Of a master: log offset before which everything is on as many machines as replicated puts need.",
    ),
    _gauge(
        "reput_replication_lag_bytes",
        "Of a master: bytes of the log that a slave lacks, by its number; other: the last of RocketMQ's.",
        "slave",
    ),
    _gauge(
        "reput_replication_lag_seconds",
        "Of a master: age of the oldest byte that a slave lacks, 0 if it has all.",
        "slave",
    ),
    _gauge("reput_replica_connected", "Of a slave: 1 while it receives its master's log."),
    _gauge("reput_replica_lag_bytes", "Of a slave: bytes of its master's log that it knows it lacks."),
    _gauge(
        "reput_replica_lag_seconds", "Of a slave: time since it had all that it knew of its master's log."
    ),
    _gauge(
        "reput_replica_tables_age_seconds",
        "Of a slave: time since it last compared its tables with its master's.",
    ),
    # Store
    _gauge("reput_storage_size_bytes", "Bytes of the store on disk.", "part"),
    _gauge("reput_disk_free_bytes", "Bytes left for the broker on the file system.", "path_role"),
    _gauge("reput_disk_used_ratio", "Used part of the file system, 0 to 1.", "path_role"),
    _gauge(
        "reput_disk_watermark_state",
        "1 for the effect of the disk's use: ok, clean (files are deleted), refuse (puts are refused too).",
        "level",
    ),
    _gauge("reput_storage_refresh_time_seconds", "Unix time at which sizes and free space were looked up."),
    _gauge("reput_storage_start_offset_bytes", "Log offset of the oldest record."),
    _gauge("reput_storage_end_offset_bytes", "Log offset that the next record gets."),
    _gauge("reput_oldest_message_seconds", "Age of the oldest message in the log, 0 without one."),
    _gauge("reput_flush_behind_bytes", "Bytes written to the log and not synced yet."),
    _gauge("reput_commit_behind_bytes", "Bytes of the log in the buffers of the pool and nowhere else."),
    _counter(
        "reput_log_file_waits_total",
        "Puts that waited for the next file of the log; 0 unless the disk is slow or full.",
    ),
    _gauge("reput_dispatch_behind_bytes", "Bytes in the log and not in the queues yet."),
    _histogram("reput_flush_duration_seconds", "One sync.", "part"),
    _histogram("reput_flush_batch_messages", "Messages acknowledged by one sync."),
    _counter("reput_flush_errors_total", "Failed syncs; the store is read-only after the first.", "part"),
    _counter(
        "reput_segments_deleted_total",
        "Files deleted by retention; disk: before their time, because the disk was too full.",
        "part",
        "reason",
    ),
    _counter("reput_segments_deleted_bytes_total", "Length of the files deleted by retention.", "part"),
    _gauge("reput_recovery_duration_seconds", "Time that recovery took at the last start."),
    _gauge("reput_recovery_truncated_bytes", "Bytes of unfinished writes truncated at the last start."),
    # Limits and configuration
    _counter("reput_backpressure_seconds_total", "Time that clients were held back.", "cause"),
    _gauge("reput_memory_buffered_bytes", "Bytes held for connections.", "kind"),
    _gauge("reput_held_pulls_bytes", "Approximate bytes of the pulls that wait for messages."),
    _gauge("reput_held_pulls_limit_bytes", "Bytes from which on the greediest clients' pulls are refused."),
    _counter(
        "reput_log_events_dropped_total",
        "Log lines that could not be written: their reader was too slow, or had failed.",
    ),
    _gauge(
        "reput_config_reload_success",
        "1 if the last reload of the configuration succeeded, or none was tried.",
    ),
    _gauge("reput_config_reload_time_seconds", "Unix time of the last successful reload, or of the start."),
    _gauge("reput_metrics_dropped_series", "Series left out because of metrics.max_series."),
)

METRICS: dict[str, MetricSpec] = {spec.name: spec for spec in _TABLE}


_PIECE_SAMPLES = 256

Labels = tuple[str, ...]
Value = int | float | Histogram


class Budget:
    """How many more series of topics, groups and queues the page may have."""

    def __init__(self, series_max: int) -> None:
        self.left = series_max
        self.dropped = 0

    def take(self, series: int) -> bool:
        """Take so many series if they are left; otherwise count them as dropped."""
        if series > self.left:
            self.dropped += series
            return False
        self.left -= series
        return True


def by_one(values: Mapping[str, Value]) -> Iterator[tuple[Labels, Value]]:
    """Return the values of a family with one label, by that label."""
    return (((name,), value) for name, value in values.items())


def one(name: str, value: Value, labels: Labels = ()) -> Metric:
    """Return the family `name` with one series."""
    (family,) = pieces(name, [(labels, value)])
    return family


def pieces(name: str, values: Iterable[tuple[Labels, Value]]) -> Iterator[Metric]:
    """Yield the family `name` in one or more pieces, from label values and numbers."""
    spec = METRICS[name]
    rest = iter(values)
    size = _PIECE_SAMPLES // 16 if spec.type == "histogram" else _PIECE_SAMPLES
    piece = list(islice(rest, size))
    while True:
        # prometheus_client keeps a counter's name without `_total` and its samples with it.
        family = Metric(name.removesuffix("_total") if spec.type == "counter" else name, spec.help, spec.type)
        for label_values, value in piece:
            labels = dict(zip(spec.labels, label_values, strict=True))
            if isinstance(value, Histogram):
                _add_histogram(family, name, labels, value)
            else:
                family.add_sample(name, labels, value)
        yield family
        piece = list(islice(rest, size))
        if not piece:
            return


def _add_histogram(family: Metric, name: str, labels: dict[str, str], histogram: Histogram) -> None:
    cumulated = 0
    for bound, count in zip((*histogram.bounds, inf), histogram.buckets, strict=True):
        cumulated += count
        family.add_sample(
            f"{name}_bucket", {**labels, "le": "+Inf" if isinf(bound) else str(bound)}, cumulated
        )
    family.add_sample(f"{name}_count", labels, cumulated)
    family.add_sample(f"{name}_sum", labels, histogram.total)
