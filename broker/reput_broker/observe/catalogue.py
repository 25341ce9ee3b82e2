"""The metrics: section, name, type, labels, buckets, meaning. The pages, the tests and the reference use this table.

Names are a public interface: `snake_case`, the unit as the last word before `_total`, base units only. The name of a
counter includes its `_total`. `kind` is `normal` unless the topic is a retry (`retry`) or dead-letter (`dlq`) topic or
the message was of another sort.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple, TypeAlias

from reput_broker.observe.counters import (
    ACK_LEVELS,
    ACK_RESULTS,
    AUTH_FAILURES,
    BACKPRESSURE_CAUSES,
    CHECK_RESULTS,
    CLOSE_REASONS,
    DELAY_ERROR_SECONDS,
    DELETE_REASONS,
    DELETED_PARTS,
    DELIVER_SECONDS,
    DROP_REASONS,
    FLUSH_BATCH_MESSAGES,
    FLUSH_PARTS,
    FLUSH_SECONDS,
    HANDSHAKES,
    KINDS,
    LISTENERS,
    LOOP_DELAY_SECONDS,
    MEMORY_KINDS,
    MESSAGE_BYTES,
    PROTOCOL_ERROR_REASONS,
    PROTOCOLS,
    REBALANCE_REASONS,
    REGISTRATION_RESULTS,
    REJECT_REASONS,
    REPLICATION_ROLES,
    REPLY_RESULTS,
    REQUEST_SECONDS,
    ROLES,
    TRANSACTION_RESULTS,
)
from reput_broker.observe.figures import STORAGE_PARTS
from reput_broker.observe.health import BrokerState
from reput_broker.observe.span_exporter import SPAN_RESULTS
from reput_broker.store.retention import DiskLevel

LabelValues: TypeAlias = tuple[str, ...]
ANY: LabelValues = ()
"""The values are names, or too many to list."""


class MetricSpec(NamedTuple):
    """One metric family. `labels` has each label's values, `buckets` the upper bounds of a histogram's."""

    section: str
    name: str
    type: Literal["counter", "gauge", "histogram"]
    labels: Mapping[str, LabelValues]
    help: str
    buckets: tuple[float, ...] = ()


class Section:
    """Collects the metrics of a section of the catalogue."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.specs: list[MetricSpec] = []

    def gauge(self, name: str, text: str, **labels: LabelValues) -> None:
        """Add a gauge."""
        self.specs.append(MetricSpec(self._name, name, "gauge", labels, text))

    def counter(self, name: str, text: str, **labels: LabelValues) -> None:
        """Add a counter."""
        self.specs.append(MetricSpec(self._name, name, "counter", labels, text))

    def histogram(self, name: str, text: str, buckets: tuple[float, ...], **labels: LabelValues) -> None:
        """Add a histogram."""
        self.specs.append(MetricSpec(self._name, name, "histogram", labels, text, buckets))


def by_name(sections: Iterable[Section]) -> dict[str, MetricSpec]:
    """Return the metrics of the sections by name."""
    return {spec.name: spec for section in sections for spec in section.specs}


_PROTOCOLS = tuple(PROTOCOLS.values())

_process = Section("Process and build")
_process.gauge(
    "reput_build_info",
    "Always 1; join on it for the version.",
    version=ANY,
    python=ANY,
    commit=ANY,
    kernel=("compiled", "interpreted"),
)
_process.gauge("reput_start_time_seconds", "Unix time at which the broker started.")
_process.gauge("reput_ready", "1 while /readyz answers 200.")
_process.gauge("reput_state", "1 for what the broker is doing, 0 for the rest.", state=tuple(BrokerState))
_process.histogram(
    "reput_event_loop_delay_seconds", "How late a periodic task of the event loop woke.", LOOP_DELAY_SECONDS
)

_traffic = Section("Traffic")
_traffic.counter("reput_messages_in_total", "Messages accepted.", topic=ANY, kind=KINDS)
_traffic.counter(
    "reput_messages_out_total", "Messages delivered to consumers.", topic=ANY, group=ANY, kind=KINDS
)
_traffic.counter("reput_bytes_in_total", "Bytes of accepted messages as they are stored.", topic=ANY)
_traffic.counter("reput_bytes_out_total", "Bytes of messages delivered to consumers.", topic=ANY, group=ANY)
_traffic.histogram(
    "reput_message_size_bytes",
    "Size of stored messages; messages of one block count with their mean.",
    MESSAGE_BYTES,
    topic=ANY,
)
_traffic.histogram(
    "reput_produce_duration_seconds",
    "From a put's frame read to its answer queued.",
    REQUEST_SECONDS,
    ack=ACK_LEVELS,
)
_traffic.histogram(
    "reput_deliver_latency_seconds",
    "From stored to delivered, of the first message of an answer that reaches the end of a queue.",
    DELIVER_SECONDS,
    topic=ANY,
)
_traffic.counter(
    "reput_duplicates_rejected_total",
    "Messages sent again that were answered with the receipt of the first time.",
    topic=ANY,
)
_traffic.counter("reput_messages_rejected_total", "Messages refused.", reason=REJECT_REASONS)
_traffic.counter(
    "reput_replies_total",
    "Replies to requests; no_requester: the requester was not connected, not_taken: it did not answer.",
    result=REPLY_RESULTS,
)

_requests = Section("Requests and connections")
_requests.counter(
    "reput_requests_total",
    "Requests answered; code is ok or the refusal's name.",
    protocol=_PROTOCOLS,
    op=ANY,
    code=ANY,
)
_requests.histogram(
    "reput_request_duration_seconds",
    "From a request read to its answer queued; held pulls under pull_wait.",
    REQUEST_SECONDS,
    protocol=_PROTOCOLS,
    op=ANY,
)
_requests.gauge("reput_requests_inflight", "Requests read and not answered yet.", protocol=_PROTOCOLS, op=ANY)
_requests.gauge("reput_connections", "Open connections.", listener=LISTENERS, role=ROLES)
_requests.counter("reput_connections_opened_total", "Connections accepted.", listener=LISTENERS)
_requests.counter(
    "reput_connections_closed_total",
    "Connections ended, and why.",
    listener=LISTENERS,
    reason=CLOSE_REASONS,
)
_requests.counter(
    "reput_protocol_errors_total",
    "Malformed or oversized frames.",
    protocol=(*_PROTOCOLS, "unknown"),
    reason=PROTOCOL_ERROR_REASONS,
)
_requests.counter(
    "reput_auth_failures_total",
    "Refusals of the console: bad_credentials, a wrong token; expired, a login that has ended; forbidden, a change or "
    "a page without a login.",
    reason=AUTH_FAILURES,
)
_requests.counter(
    "reput_network_bytes_total",
    "Bytes of frames read and written.",
    listener=LISTENERS,
    direction=("in", "out"),
)

_name_servers = Section("Name servers")
_name_servers.gauge("reput_registered_brokers", "Brokers that are registered with this name service.")
_name_servers.gauge(
    "reput_name_server_registered", "1 while the broker is registered there.", name_server=ANY
)
_name_servers.counter(
    "reput_name_server_registrations_total",
    "Registrations there.",
    name_server=ANY,
    result=REGISTRATION_RESULTS,
)

_consumers = Section("Queues and consumers")
_consumers.gauge("reput_queue_start_offset", "Queue offset of the oldest message.", topic=ANY, queue=ANY)
_consumers.gauge("reput_queue_end_offset", "Queue offset that the next message gets.", topic=ANY, queue=ANY)
_consumers.gauge(
    "reput_consumer_committed_offset", "Next offset to consume.", group=ANY, topic=ANY, queue=ANY
)
_consumers.gauge(
    "reput_consumer_lag_messages", "End offset minus committed offset.", group=ANY, topic=ANY, queue=ANY
)
_consumers.gauge(
    "reput_consumer_lag_seconds",
    "Age of the oldest message that is not committed, 0 if there is none.",
    group=ANY,
    topic=ANY,
)
_consumers.gauge("reput_consumer_lag_refresh_time_seconds", "Unix time at which these ages were looked up.")
_consumers.gauge(
    "reput_consumer_inflight_messages", "Messages pulled and not committed.", group=ANY, topic=ANY
)
_consumers.gauge("reput_consumer_ready_messages", "Messages that could be pulled now.", group=ANY, topic=ANY)
_consumers.gauge("reput_consumer_members", "Members online.", group=ANY)
_consumers.counter(
    "reput_acks_total",
    "ack: messages committed; nack: messages sent back; expired: messages delivered again, because they were not "
    "committed; late: commits that were older than the offset of the group, or than its reset.",
    group=ANY,
    result=ACK_RESULTS,
)
_consumers.counter(
    "reput_retries_total",
    "Messages sent back, or popped and not acknowledged, by the topic they were sent to first.",
    group=ANY,
    topic=ANY,
)
_consumers.counter(
    "reput_dead_letters_total", "Messages that became dead letters, likewise.", group=ANY, topic=ANY
)
_consumers.gauge(
    "reput_popped_messages",
    "Messages popped since the start that are neither acknowledged nor redelivered.",
    group=ANY,
    topic=ANY,
)
_consumers.gauge(
    "reput_pop_revive_due_seconds",
    "How long the most overdue popped message has waited for its redelivery, 0 if none is due.",
)
_consumers.counter(
    "reput_rebalances_total",
    "Changes of a group after which its members rebalance the queues.",
    group=ANY,
    reason=REBALANCE_REASONS,
)
_consumers.counter(
    "reput_subscription_conflicts_total",
    "Heartbeats of members that subscribe to something else than another member of their group.",
    group=ANY,
)

_delays = Section("Delays and transactions")
_delays.gauge("reput_delayed_messages", "Delayed messages; complete some time after a start.", topic=ANY)
_delays.gauge(
    "reput_delayed_due_seconds", "How late the most overdue message that waits is, 0 if none is due."
)
_delays.counter("reput_delayed_delivered_total", "Delayed messages delivered.", topic=ANY)
_delays.counter("reput_delayed_cancelled_total", "Delayed messages cancelled.", topic=ANY)
_delays.counter(
    "reput_delayed_dropped_total",
    "Delayed messages that will not be delivered: their topic was deleted (no_topic), their record has left the log "
    "(lost) or is damaged (unreadable), or the store refuses them (refused).",
    reason=DROP_REASONS,
)
_delays.histogram(
    "reput_delay_error_seconds",
    "From when a delayed message was due to when it was put.",
    DELAY_ERROR_SECONDS,
)
_delays.gauge("reput_transactions_open", "Half messages not decided.", topic=ANY)
_delays.counter(
    "reput_transactions_total",
    "Transactions ended; timeout: the producer did not end it, and the message was discarded.",
    topic=ANY,
    result=TRANSACTION_RESULTS,
)
_delays.counter(
    "reput_transaction_checks_total",
    "Answers to transaction checks; no_producer: no producer was connected.",
    topic=ANY,
    result=CHECK_RESULTS,
)

_replication = Section("Replication")
_replication.gauge("reput_role", "1 for the role of the broker, 0 for the rest.", role=REPLICATION_ROLES)
_replication.gauge("reput_epoch", "The epoch of the last master of this log, as far as the broker knows.")
_replication.gauge("reput_replication_slaves", "Of a master: connected slaves.")
_replication.gauge(
    "reput_replication_copies_in_sync",
    "Of a master: copies of the log that are in sync, its own included.",
)
_replication.gauge(
    "reput_replication_copies_wanted",
    "Of a master: copies that replicated puts need: ha.in_sync_replicas.",
)
_replication.gauge(
    "reput_replicated_offset_bytes",
    "Of a master: log offset before which everything is on as many machines as replicated puts need.",
)
_replication.gauge(
    "reput_replication_lag_bytes",
    "Of a master: bytes of the log that a slave lacks, by its number; other: the last of RocketMQ's.",
    slave=ANY,
)
_replication.gauge(
    "reput_replication_lag_seconds",
    "Of a master: age of the oldest byte that a slave lacks, 0 if it has all.",
    slave=ANY,
)
_replication.gauge("reput_replica_has_master", "Of a slave: 1 while it knows which broker is the master.")
_replication.gauge("reput_replica_connected", "Of a slave: 1 while it receives its master's log.")
_replication.gauge("reput_replica_lag_bytes", "Of a slave: bytes of its master's log that it knows it lacks.")
_replication.gauge(
    "reput_replica_lag_seconds", "Of a slave: time since it had all that it knew of its master's log."
)
_replication.gauge(
    "reput_replica_tables_age_seconds",
    "Of a slave: time since it last compared its tables with its master's.",
)

_store = Section("Store")
_store.gauge("reput_storage_size_bytes", "Bytes of the store on disk.", part=STORAGE_PARTS)
_store.gauge("reput_disk_free_bytes", "Bytes left for the broker on the file system.", path_role=ANY)
_store.gauge("reput_disk_used_ratio", "Used part of the file system, 0 to 1.", path_role=ANY)
_store.gauge(
    "reput_disk_watermark_state",
    "1 for the effect of the disk's use: ok, clean (files are deleted), refuse (puts are refused too).",
    level=tuple(DiskLevel),
)
_store.gauge("reput_storage_refresh_time_seconds", "Unix time at which sizes and free space were looked up.")
_store.gauge("reput_storage_start_offset_bytes", "Log offset of the oldest record.")
_store.gauge("reput_storage_end_offset_bytes", "Log offset that the next record gets.")
_store.gauge("reput_oldest_message_seconds", "Age of the oldest message in the log, 0 without one.")
_store.gauge("reput_flush_behind_bytes", "Bytes written to the log and not synced yet.")
_store.gauge("reput_commit_behind_bytes", "Bytes of the log in the buffers of the pool and nowhere else.")
_store.gauge("reput_dispatch_behind_bytes", "Bytes in the log and not in the queues yet.")
_store.counter(
    "reput_log_file_waits_total",
    "Puts that waited for the next file of the log; 0 unless the disk is slow or full.",
)
_store.histogram("reput_flush_duration_seconds", "One sync.", FLUSH_SECONDS, part=FLUSH_PARTS)
_store.histogram("reput_flush_batch_messages", "Messages acknowledged by one sync.", FLUSH_BATCH_MESSAGES)
_store.counter(
    "reput_flush_errors_total", "Failed syncs; the store is read-only after the first.", part=FLUSH_PARTS
)
_store.counter(
    "reput_segments_deleted_total",
    "Files deleted by retention; disk: before their time, because the disk was too full.",
    part=DELETED_PARTS,
    reason=DELETE_REASONS,
)
_store.counter(
    "reput_segments_deleted_bytes_total", "Length of the files deleted by retention.", part=DELETED_PARTS
)
_store.gauge("reput_recovery_duration_seconds", "Time that recovery took at the last start.")
_store.gauge("reput_recovery_truncated_bytes", "Bytes of unfinished writes truncated at the last start.")
_store.gauge(
    "reput_recovery_damaged_records",
    "Damaged places of the journal of offsets at the last start; groups may see messages again. Damage of the log "
    "prevents the start.",
)

_limits = Section("Limits and configuration")
_limits.counter(
    "reput_backpressure_seconds_total", "Time that clients were held back.", cause=BACKPRESSURE_CAUSES
)
_limits.gauge("reput_memory_buffered_bytes", "Bytes held for connections.", kind=MEMORY_KINDS)
_limits.gauge("reput_held_pulls_bytes", "Approximate bytes of the pulls that wait for messages.")
_limits.gauge("reput_held_pulls_limit_bytes", "Bytes from which on the greediest clients' pulls are refused.")
_limits.counter(
    "reput_quota_throttled_total",
    "Pulls that were refused because their client has too many waiting.",
    scope=("client",),
)
_limits.counter(
    "reput_log_events_dropped_total",
    "Log lines that could not be written: their reader was too slow, or had failed.",
)
_limits.counter(
    "reput_spans_total",
    "Spans; failed: their receiver did not take them; dropped: too many waited for it.",
    result=SPAN_RESULTS,
)
_limits.gauge(
    "reput_config_reload_success",
    "1 if the last reload of the configuration succeeded, or none was tried.",
)
_limits.gauge("reput_config_reload_time_seconds", "Unix time of the last successful reload, or of the start.")
_limits.gauge(
    "reput_metrics_dropped_series",
    "Series left out because of metrics.max_series: those of queues first, then the histograms of topics.",
)

_tls = Section("TLS")
_tls.counter(
    "reput_tls_handshakes_total",
    "On ports with TLS: connections that were encrypted (ok), whose handshake failed, and that began without TLS "
    "(plain).",
    listener=LISTENERS,
    result=HANDSHAKES,
)
_tls.gauge(
    "reput_tls_certificate_end_time_seconds",
    "Unix time at which the certificate of tls.cert ends, or the last authority of tls.ca.",
    file=ANY,
)
_tls.gauge(
    "reput_tls_reload_success",
    "1 if the files of certificates could be used when they last changed; else those read before are in use.",
)

METRICS: dict[str, MetricSpec] = by_name(
    (
        _process,
        _traffic,
        _requests,
        _name_servers,
        _consumers,
        _delays,
        _replication,
        _store,
        _limits,
        _tls,
    )
)
