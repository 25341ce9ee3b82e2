"""The metrics of /metrics, a row each: section, name, type, labels, meaning, where the value comes from. The page, the
tests and the reference are made from this table, in its order, in which `metrics.max_series` leaves out the last.

Names are a public interface: `snake_case`, the unit as the last word before `_total`, base units only. The name of a
counter includes its `_total`. `kind` is `normal` unless the topic is a retry (`retry`) or dead-letter (`dlq`) topic or
the message was of another sort.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from reput_broker.observe import counters
from reput_broker.observe.exposition import ANY, Found, MetricSpec, Section, by_name
from reput_broker.observe.figures import STORAGE_PARTS
from reput_broker.observe.health import BrokerState
from reput_broker.observe.log import dropped_events
from reput_broker.observe.metrics import (
    Labels,
    MasterFigures,
    Rows,
    Scrape,
    SlaveFigures,
    Value,
    broker_version,
    in_flight_messages,
    op_name,
    ready_messages,
    response_name,
)
from reput_broker.observe.span_exporter import SPAN_RESULTS
from reput_broker.store.retention import DiskLevel
from reput_protocol import kernel
from reput_protocol.codes import RequestCode
from reput_protocol.commands.group_description import HealthState
from reput_protocol.commands.schedule import ScheduleState
from reput_protocol.names import is_own_group

if TYPE_CHECKING:
    from reput_broker.store.message_store import MessageStore

_PROTOCOLS = tuple(counters.PROTOCOLS.values())
_FIXED_OPS = (RequestCode.PUT_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.PULL_MESSAGE)


def _of_store(read: Callable[[MessageStore], Value]) -> Callable[[Scrape], Found]:
    """Return a reading of the store while it is open."""
    return lambda scrape: None if scrape.sources.store is None else read(scrape.sources.store)


def _of_master(read: Callable[[MasterFigures], Found]) -> Callable[[Scrape], Found]:
    """Return a reading of a master."""
    return lambda scrape: None if (f := scrape.replication) is None or f.master is None else read(f.master)


def _of_slave(read: Callable[[SlaveFigures], Found]) -> Callable[[Scrape], Found]:
    """Return a reading of a slave."""
    return lambda scrape: None if (f := scrape.replication) is None or f.slave is None else read(f.slave)


def _of_proxy(read: Callable[[counters.ProxyCounters], Found]) -> Callable[[Scrape], Found]:
    """Return a reading of the proxy, if the configuration has one."""
    return lambda scrape: None if scrape.sources.proxy is None else read(scrape.sources.proxy)


def _one_of(values: type[BrokerState] | type[DiskLevel] | Labels, current: str) -> Mapping[str, int]:
    """Return 1 for the current value, 0 for the rest."""
    return {value: int(value == current) for value in values}


def _messages_in(scrape: Scrape) -> Rows:
    kinds = [(topic, kind, of) for topic, traffic in scrape.topics for kind, of in traffic.sizes.items()]
    return (((topic, kind), sizes.count) for topic, kind, sizes in scrape.budget.fit(kinds, 1))


def _by_op(scrape: Scrape) -> tuple[dict[Labels, int], dict[Labels, counters.Histogram], dict[Labels, int]]:
    """Return the answers, their durations and the requests in flight, by protocol and op, the first also by code."""
    fixed = [(protocol, op.name.lower()) for protocol in _PROTOCOLS for op in _FIXED_OPS]
    totals: dict[Labels, int] = {(*names, "ok"): 0 for names in fixed}
    durations: dict[Labels, counters.Histogram] = {}
    inflight: dict[Labels, int] = dict.fromkeys(fixed, 0)
    for (header_type, code), traffic in scrape.counters.requests.items():
        names = (counters.PROTOCOLS.get(header_type, "unknown"), op_name(code))
        for response_code, seconds in traffic.answers.items():
            labels = (*names, response_name(response_code))
            totals[labels] = totals.get(labels, 0) + seconds.count
        durations[names] = counters.merged(traffic.answers.values())
        inflight[names] = traffic.inflight
    return totals, durations, inflight


def _members(scrape: Scrape) -> Rows:
    sources = scrape.sources.groups
    for name in scrape.groups:
        group = None if sources is None else sources.online.get(name)
        yield (name,), 0 if group is None else len(group.client_ids())


def _states(scrape: Scrape) -> Rows:
    sources = scrape.sources.groups
    if sources is None or (states := sources.states()) is None:
        return
    for group in scrape.groups:
        if not is_own_group(group):
            yield (group, states.get(group, HealthState.OK)), 1


def _schedule_states(scrape: Scrape) -> Rows:
    schedules = scrape.sources.schedules
    states = () if schedules is None else scrape.budget.fit(list(schedules.states()), 1)
    return ((of, 1) for of in states)


def _acks(scrape: Scrape) -> Rows:
    acks, nacks = scrape.counters.acks, scrape.counters.retry.nacks
    for group in scrape.groups:
        for result in counters.ACK_RESULTS:
            yield (group, result), nacks[group] if result == "nack" else acks.get((group, result), 0)


def _lag_seconds(scrape: Scrape) -> Rows:
    sources = scrape.sources.groups
    seconds = {} if sources is None else sources.lag.seconds
    return (((group, topic), seconds.get((group, topic), 0.0)) for group, topic, _ in scrape.group_topics)


def _by_disk(scrape: Scrape, data: Value, log: Value) -> Mapping[str, Value]:
    return {"data": data} if scrape.sources.disk.log_free_bytes is None else {"data": data, "commitlog": log}


_process = Section("Process and build")
_process.gauge(
    "reput_build_info",
    "Always 1; join on it for the version.",
    lambda _: [
        ((broker_version(), platform.python_version(), os.environ.get("REPUT_BUILD_COMMIT", "unknown"), kernel.FORM), 1)
    ],
    version=ANY,
    python=ANY,
    commit=ANY,
    kernel=("compiled", "interpreted"),
)
_process.gauge(
    "reput_start_time_seconds", "Unix time at which the broker started.", lambda s: s.sources.health.started_at_s
)
_process.gauge("reput_ready", "1 while /readyz returns 200.", lambda s: int(s.sources.health.ready))
_process.gauge(
    "reput_state",
    "1 for what the broker is doing, 0 for the rest.",
    lambda s: _one_of(BrokerState, s.sources.health.state),
    state=tuple(BrokerState),
)
_process.histogram(
    "reput_event_loop_delay_seconds",
    "How late a periodic task of the event loop woke.",
    counters.LOOP_DELAY_SECONDS,
    lambda s: s.counters.loop_delay_seconds,
)

_requests = Section("Requests and connections")
_requests.counter(
    "reput_requests_total",
    "Requests with a response; code is ok or the name of the error.",
    lambda s: s.once(_by_op)[0],
    protocol=_PROTOCOLS,
    op=ANY,
    code=ANY,
)
_requests.histogram(
    "reput_request_duration_seconds",
    "From a request read to its response queued; held pulls under pull_wait.",
    counters.REQUEST_SECONDS,
    lambda s: s.once(_by_op)[1],
    protocol=_PROTOCOLS,
    op=ANY,
)
_requests.gauge(
    "reput_requests_inflight",
    "Requests read, without a response yet.",
    lambda s: s.once(_by_op)[2],
    protocol=_PROTOCOLS,
    op=ANY,
)
_requests.gauge(
    "reput_connections",
    "Open connections.",
    lambda s: (
        ((name, role), count) for name, of in s.counters.listeners.items() for role, count in of.open_by_role.items()
    ),
    listener=counters.LISTENERS,
    role=counters.ROLES,
)
_requests.counter(
    "reput_connections_opened_total",
    "Connections accepted.",
    lambda s: {name: of.opened for name, of in s.counters.listeners.items()},
    listener=counters.LISTENERS,
)
_requests.counter(
    "reput_connections_closed_total",
    "Connections ended, and why.",
    lambda s: (
        ((name, reason), count) for name, of in s.counters.listeners.items() for reason, count in of.closed.items()
    ),
    listener=counters.LISTENERS,
    reason=counters.CLOSE_REASONS,
)
_requests.counter(
    "reput_protocol_errors_total",
    "Malformed or oversized frames.",
    lambda s: s.counters.protocol_errors.items(),
    protocol=(*_PROTOCOLS, "unknown"),
    reason=counters.PROTOCOL_ERROR_REASONS,
)
_requests.counter(
    "reput_auth_failures_total",
    "Rejected requests of the console: bad_credentials, a wrong token; expired, an ended login; forbidden, a change or "
    "a page without a login.",
    lambda s: s.counters.auth_failures,
    reason=counters.AUTH_FAILURES,
)
_requests.counter(
    "reput_network_bytes_total",
    "Bytes of frames read and written.",
    lambda s: (
        ((name, direction), count)
        for name, of in s.counters.listeners.items()
        for direction, count in (("in", of.bytes_in), ("out", of.bytes_out))
    ),
    listener=counters.LISTENERS,
    direction=("in", "out"),
)

_traffic = Section("Traffic")
_traffic.counter("reput_messages_in_total", "Messages accepted.", _messages_in, topic=ANY, kind=counters.KINDS)
_traffic.counter(
    "reput_messages_out_total",
    "Messages delivered to consumers.",
    lambda s: (((topic, group, counters.topic_kind(topic)), out.messages_out) for (topic, group), out in s.consumed),
    topic=ANY,
    group=ANY,
    kind=counters.KINDS,
)
_traffic.counter(
    "reput_bytes_in_total",
    "Bytes of accepted messages as they are stored.",
    lambda s: (((topic,), traffic.bytes_in) for topic, traffic in s.topics),
    topic=ANY,
)
_traffic.counter(
    "reput_bytes_out_total",
    "Bytes of messages delivered to consumers.",
    lambda s: ((names, out.bytes_out) for names, out in s.consumed),
    topic=ANY,
    group=ANY,
)
_traffic.counter(
    "reput_messages_expired_total",
    "Messages that were not delivered to consumers because they had expired; again for each look at them.",
    lambda s: ((names, out.expired) for names, out in s.consumed),
    topic=ANY,
    group=ANY,
)
_traffic.histogram(
    "reput_produce_duration_seconds",
    "From the frame of a send read to its response queued.",
    counters.REQUEST_SECONDS,
    lambda s: s.counters.produce_seconds,
    ack=counters.ACK_LEVELS,
)
_traffic.counter(
    "reput_duplicates_rejected_total",
    "Messages sent again that got the receipt of the first send.",
    lambda s: (((topic,), traffic.duplicates) for topic, traffic in s.topics),
    topic=ANY,
)
_traffic.counter(
    "reput_messages_rejected_total", "Messages rejected.", lambda s: s.counters.rejected, reason=counters.REJECT_REASONS
)
_traffic.counter(
    "reput_replies_total",
    "Replies to requests; no_requester: the requester was not connected, not_taken: it did not respond.",
    lambda s: s.counters.replies,
    result=counters.REPLY_RESULTS,
)

_name_servers = Section("Name servers")
_name_servers.gauge(
    "reput_registered_brokers",
    "Brokers that are registered with this name service.",
    lambda s: s.sources.registered_brokers(),
)
_name_servers.gauge(
    "reput_name_server_registered",
    "1 while the broker is registered there.",
    lambda s: {name: int(of.is_registered) for name, of in s.counters.name_servers.items()},
    name_server=ANY,
)
_name_servers.counter(
    "reput_name_server_registrations_total",
    "Registrations there.",
    lambda s: (
        ((name, result), count)
        for name, of in s.counters.name_servers.items()
        for result, count in of.registrations.items()
    ),
    name_server=ANY,
    result=counters.REGISTRATION_RESULTS,
)

_consumers = Section("Consumers")
_consumers.gauge("reput_consumer_members", "Members online.", _members, group=ANY)
_consumers.gauge(
    "reput_consumer_group_state",
    "1 for the state of the group, which is computed with the ages of lag; the other states have no series.",
    _states,
    group=ANY,
    state=tuple(state for state in HealthState if state is not HealthState.UNKNOWN),
)
_consumers.counter(
    "reput_acks_total",
    "ack: messages committed; nack: messages sent back; expired: messages delivered again, because they were not "
    "committed; late: commits that were older than the offset of the group, or than its reset.",
    _acks,
    group=ANY,
    result=counters.ACK_RESULTS,
)
_consumers.counter(
    "reput_rebalances_total",
    "Changes of a group after which its members rebalance the queues.",
    lambda s: (
        ((group, reason), s.counters.rebalances.get((group, reason), 0))
        for group in s.groups
        for reason in counters.REBALANCE_REASONS
    ),
    group=ANY,
    reason=counters.REBALANCE_REASONS,
)
_consumers.counter(
    "reput_subscription_conflicts_total",
    "Heartbeats of members that subscribe to something else than another member of their group.",
    lambda s: (((group,), s.counters.subscription_conflicts.get(group, 0)) for group in s.groups),
    group=ANY,
)
_consumers.gauge(
    "reput_consumer_lag_seconds",
    "Age of the oldest message that is not committed, 0 if there is none.",
    _lag_seconds,
    group=ANY,
    topic=ANY,
)
_consumers.gauge(
    "reput_consumer_lag_refresh_time_seconds",
    "Unix time at which these ages were looked up.",
    lambda s: () if s.sources.groups is None else s.sources.groups.lag.looked_up_at_s,
)
_consumers.gauge(
    "reput_consumer_inflight_messages",
    "Messages pulled and not committed.",
    lambda s: in_flight_messages(s, s.group_topics),
    group=ANY,
    topic=ANY,
)
_consumers.gauge(
    "reput_consumer_ready_messages",
    "Messages that could be pulled now.",
    lambda s: ready_messages(s, s.group_topics),
    group=ANY,
    topic=ANY,
)
_consumers.counter(
    "reput_retries_total",
    "Messages sent back, or popped and not acknowledged, by the topic they were sent to first.",
    lambda s: ((of, s.counters.retry.retries[of]) for of in s.retried),
    group=ANY,
    topic=ANY,
)
_consumers.counter(
    "reput_dead_letters_total",
    "Messages that became dead letters, likewise.",
    lambda s: ((of, s.counters.retry.dead_letters[of]) for of in s.retried),
    group=ANY,
    topic=ANY,
)
_consumers.gauge(
    "reput_popped_messages",
    "Messages popped since the start that are neither acknowledged nor redelivered.",
    lambda s: () if (pop := s.sources.pop) is None else s.budget.fit(list(pop.in_flight()), 1),
    group=ANY,
    topic=ANY,
)
_consumers.gauge(
    "reput_pop_revive_due_seconds",
    "How long the most overdue popped message has waited for its redelivery, 0 if none is due.",
    lambda s: 0.0 if s.sources.pop is None else s.sources.pop.due_s(),
)

_delays = Section("Delays and transactions")
_delays.gauge(
    "reput_delayed_messages",
    "Delayed messages; complete some time after a start.",
    lambda s: (((topic,), max(0, s.delays.waiting[topic])) for topic in s.delay_topics),
    topic=ANY,
)
_delays.gauge(
    "reput_delayed_due_seconds",
    "How late the most overdue message that waits is, 0 if none is due.",
    lambda s: 0.0 if s.sources.delays is None else s.sources.delays.due_s(),
)
_delays.counter(
    "reput_delayed_delivered_total",
    "Delayed messages delivered.",
    lambda s: (((topic,), max(0, s.delays.delivered[topic])) for topic in s.delay_topics),
    topic=ANY,
)
_delays.counter(
    "reput_delayed_cancelled_total",
    "Delayed messages cancelled.",
    lambda s: (((topic,), max(0, s.delays.cancelled[topic])) for topic in s.delay_topics),
    topic=ANY,
)
_delays.counter(
    "reput_delayed_dropped_total",
    "Delayed messages that will not be delivered: their topic was deleted (no_topic), their record has left the log "
    "(lost) or is damaged (unreadable), or the store rejects them (refused).",
    lambda s: s.delays.dropped,
    reason=counters.DROP_REASONS,
)
_delays.histogram(
    "reput_delay_error_seconds",
    "From when a delayed message was due to when it was stored.",
    counters.DELAY_ERROR_SECONDS,
    lambda s: s.delays.error_seconds,
)
_delays.gauge(
    "reput_transactions_open",
    "Half messages not decided.",
    lambda s: (((topic,), s.open_transactions.get(topic, 0)) for topic in s.transaction_topics),
    topic=ANY,
)
_delays.counter(
    "reput_transactions_total",
    "Transactions ended; timeout: the producer did not end it, and the message was discarded.",
    lambda s: (
        ((topic, result), s.counters.retry.transactions[topic, result])
        for topic in s.transaction_topics
        for result in counters.TRANSACTION_RESULTS
    ),
    topic=ANY,
    result=counters.TRANSACTION_RESULTS,
)
_delays.counter(
    "reput_transaction_checks_total",
    "Results of transaction checks; no_producer: no producer was connected.",
    lambda s: (
        ((topic, result), s.counters.retry.checks[topic, result])
        for topic in s.transaction_topics
        for result in counters.CHECK_RESULTS
    ),
    topic=ANY,
    result=counters.CHECK_RESULTS,
)

_schedules = Section("Schedules")
_schedules.gauge(
    "reput_schedule_state",
    "1 for the state of the schedule; the other states have no series.",
    _schedule_states,
    schedule=ANY,
    state=tuple(state for state in ScheduleState if state is not ScheduleState.UNKNOWN),
)
_schedules.counter(
    "reput_schedule_messages_sent_total",
    "Messages that schedules have sent for their times.",
    lambda s: (((topic,), s.schedules.sent[topic]) for topic in s.schedule_topics),
    topic=ANY,
)
_schedules.counter(
    "reput_schedule_times_missed_total",
    "Times of schedules for which no message is sent: no broker could send in time (late), their topic does not exist "
    "(no_topic), or the topic or the store accepts no such message (refused).",
    lambda s: s.schedules.missed,
    reason=counters.TIME_MISSED_REASONS,
)
_schedules.gauge(
    "reput_schedules_due_seconds",
    "How late the most overdue message of a schedule is, 0 if none is due.",
    lambda s: 0.0 if s.sources.schedules is None else s.sources.schedules.late_s(),
)
_schedules.histogram(
    "reput_schedule_error_seconds",
    "From the time of a schedule to when its message was stored.",
    counters.DELAY_ERROR_SECONDS,
    lambda s: s.schedules.late_seconds,
)

_replication = Section("Replication")
_replication.gauge(
    "reput_role",
    "1 for the role of the broker, 0 for the rest.",
    lambda s: None if s.replication is None else _one_of(counters.REPLICATION_ROLES, s.replication.role),
    role=counters.REPLICATION_ROLES,
)
_replication.gauge(
    "reput_epoch",
    "The epoch of the last master of this log, as far as the broker knows.",
    lambda s: None if s.replication is None else s.replication.epoch,
)
_replication.gauge(
    "reput_replication_slaves", "Of a master: connected slaves.", _of_master(lambda master: master.connected)
)
_replication.gauge(
    "reput_replication_copies_in_sync",
    "Of a master: copies of the log that are in sync, its own included.",
    _of_master(lambda master: master.in_sync),
)
_replication.gauge(
    "reput_replication_copies_wanted",
    "Of a master: copies that replicated sends need: ha.in_sync_replicas.",
    _of_master(lambda master: master.wanted),
)
_replication.gauge(
    "reput_replicated_offset_bytes",
    "Of a master: log offset before which everything is on as many machines as replicated sends need.",
    _of_master(lambda master: master.replicated_offset),
)
_replication.gauge(
    "reput_replication_lag_bytes",
    "Of a master: bytes of the log that a slave lacks, by its number; other: the last of RocketMQ's.",
    _of_master(lambda master: {slave: size_b for slave, (size_b, _) in master.lag.items()}),
    slave=ANY,
)
_replication.gauge(
    "reput_replication_lag_seconds",
    "Of a master: age of the oldest byte that a slave lacks, 0 if it has all.",
    _of_master(lambda master: {slave: age_s for slave, (_, age_s) in master.lag.items()}),
    slave=ANY,
)
_replication.gauge(
    "reput_replica_has_master",
    "Of a slave: 1 while it knows which broker is the master.",
    _of_slave(lambda slave: int(slave.has_master)),
)
_replication.gauge(
    "reput_replica_connected",
    "Of a slave: 1 while it receives its master's log.",
    _of_slave(lambda slave: int(slave.is_connected)),
)
_replication.gauge(
    "reput_replica_lag_bytes",
    "Of a slave: bytes of its master's log that it knows it lacks.",
    _of_slave(lambda slave: slave.lag_bytes),
)
_replication.gauge(
    "reput_replica_lag_seconds",
    "Of a slave: time since it had all that it knew of its master's log.",
    _of_slave(lambda slave: slave.lag_s),
)
_replication.gauge(
    "reput_replica_tables_age_seconds",
    "Of a slave: time since it last compared its tables with its master's.",
    _of_slave(lambda slave: slave.tables_age_s),
)

_store = Section("Store")
_store.gauge(
    "reput_storage_size_bytes", "Bytes of the store on disk.", lambda s: s.sources.disk.size_bytes, part=STORAGE_PARTS
)
_store.gauge(
    "reput_disk_free_bytes",
    "Bytes left for the broker on the file system.",
    lambda s: _by_disk(s, s.sources.disk.free_bytes, s.sources.disk.log_free_bytes or 0),
    path_role=ANY,
)
_store.gauge(
    "reput_disk_used_ratio",
    "Used part of the file system, 0 to 1.",
    lambda s: _by_disk(s, s.sources.disk.used_ratio, s.sources.disk.log_used_ratio),
    path_role=ANY,
)
_store.gauge(
    "reput_disk_watermark_state",
    "1 for the effect of the disk's use: ok, clean (files are deleted), refuse (sends are rejected too).",
    lambda s: _one_of(DiskLevel, s.sources.disk.level),
    level=tuple(DiskLevel),
)
_store.gauge(
    "reput_storage_refresh_time_seconds",
    "Unix time at which sizes and free space were looked up.",
    lambda s: s.sources.disk.looked_up_at_s,
)
_store.gauge(
    "reput_storage_start_offset_bytes",
    "Log offset of the oldest record.",
    _of_store(lambda store: store.min_physical_offset),
)
_store.gauge(
    "reput_storage_end_offset_bytes",
    "Log offset that the next record gets.",
    _of_store(lambda store: store.max_physical_offset),
)
_store.gauge(
    "reput_oldest_message_seconds",
    "Age of the oldest message in the log, 0 without one.",
    lambda s: s.oldest_message_ms / 1000,
)
_store.gauge(
    "reput_flush_behind_bytes",
    "Bytes written to the log and not synced yet.",
    _of_store(lambda store: store.flush_behind_bytes),
)
_store.gauge(
    "reput_commit_behind_bytes",
    "Bytes of the log in the buffers of the pool and nowhere else.",
    _of_store(lambda store: store.commit_behind_bytes),
)
_store.gauge(
    "reput_dispatch_behind_bytes",
    "Bytes in the log and not in the queues yet.",
    _of_store(lambda store: store.dispatch_behind_bytes),
)
_store.counter(
    "reput_log_file_waits_total",
    "Sends that waited for the next file of the log; 0 unless the disk is slow or full.",
    _of_store(lambda store: store.file_waits),
)
_store.histogram(
    "reput_flush_duration_seconds",
    "One sync.",
    counters.FLUSH_SECONDS,
    lambda s: s.counters.flush_seconds,
    part=counters.FLUSH_PARTS,
)
_store.histogram(
    "reput_flush_batch_messages",
    "Messages acknowledged by one sync.",
    counters.FLUSH_BATCH_MESSAGES,
    lambda s: s.counters.flush_batch_messages,
)
_store.counter(
    "reput_flush_errors_total",
    "Failed syncs; the store is read-only after the first.",
    lambda s: s.counters.flush_errors,
    part=counters.FLUSH_PARTS,
)
_store.counter(
    "reput_segments_deleted_total",
    "Files deleted by retention; disk: before their time, because the disk was too full.",
    lambda s: s.counters.segments_deleted.items(),
    part=counters.DELETED_PARTS,
    reason=counters.DELETE_REASONS,
)
_store.counter(
    "reput_segments_deleted_bytes_total",
    "Length of the files deleted by retention.",
    lambda s: s.counters.deleted_bytes,
    part=counters.DELETED_PARTS,
)
_store.gauge(
    "reput_recovery_duration_seconds",
    "Time that recovery took at the last start.",
    lambda s: s.sources.recovery_duration_s,
)
_store.gauge(
    "reput_recovery_truncated_bytes",
    "Bytes of unfinished writes truncated at the last start.",
    lambda s: s.sources.recovery_truncated_bytes,
)
_store.gauge(
    "reput_recovery_damaged_records",
    "Damaged places of the journal of offsets at the last start; groups may see messages again. Damage of the log "
    "prevents the start.",
    lambda s: 0 if s.sources.offsets is None else s.sources.offsets.damaged,
)

_histograms = Section("Histograms of topics")
_histograms.histogram(
    "reput_message_size_bytes",
    "Size of stored messages; messages of one block count with their mean.",
    counters.MESSAGE_BYTES,
    lambda s: (((topic,), counters.merged(traffic.sizes.values())) for topic, traffic in s.topic_histograms),
    topic=ANY,
)
_histograms.histogram(
    "reput_deliver_latency_seconds",
    "From stored to delivered, of the first message of a response that reaches the end of a queue.",
    counters.DELIVER_SECONDS,
    lambda s: (((topic,), traffic.deliver_seconds) for topic, traffic in s.topic_histograms),
    topic=ANY,
)

_queues = Section("Queues")
_queues.gauge(
    "reput_consumer_committed_offset",
    "Next offset to consume.",
    lambda s: (((group, topic, str(at)), table.get(at, 0)) for group, topic, at, table in s.committed_queues),
    group=ANY,
    topic=ANY,
    queue=ANY,
)
_queues.gauge(
    "reput_consumer_lag_messages",
    "End offset minus committed offset.",
    lambda s: (
        ((group, topic, str(at)), max(0, s.bounds[topic, at][1] - table.get(at, 0)))
        for group, topic, at, table in s.committed_queues
    ),
    group=ANY,
    topic=ANY,
    queue=ANY,
)
_queues.gauge(
    "reput_queue_start_offset",
    "Queue offset of the oldest message.",
    lambda s: (((topic, str(at)), s.bounds[topic, at][0]) for topic, at in s.queues),
    topic=ANY,
    queue=ANY,
)
_queues.gauge(
    "reput_queue_end_offset",
    "Queue offset that the next message gets.",
    lambda s: (((topic, str(at)), s.bounds[topic, at][1]) for topic, at in s.queues),
    topic=ANY,
    queue=ANY,
)

_limits = Section("Limits and configuration")
_limits.counter(
    "reput_backpressure_seconds_total",
    "Time that clients were held back.",
    lambda s: s.counters.backpressure_seconds,
    cause=counters.BACKPRESSURE_CAUSES,
)
_limits.gauge(
    "reput_memory_buffered_bytes",
    "Bytes held for connections.",
    lambda s: s.counters.buffered_bytes,
    kind=counters.MEMORY_KINDS,
)
_limits.gauge(
    "reput_held_pulls_bytes",
    "Approximate bytes of the pulls that wait for messages.",
    lambda s: s.sources.held_pulls_bytes(),
)
_limits.gauge(
    "reput_held_pulls_limit_bytes",
    "Bytes from which on the pulls of the clients with the most are rejected.",
    lambda s: s.sources.config.long_polling.memory_max,
)
_limits.counter(
    "reput_quota_throttled_total",
    "Pulls that were rejected because their client has too many waiting.",
    lambda s: {"client": s.counters.pulls_throttled},
    scope=("client",),
)
_limits.counter(
    "reput_log_events_dropped_total",
    "Log lines that could not be written: their reader was too slow, or had failed.",
    lambda _: dropped_events(),
)
_limits.counter(
    "reput_spans_total",
    "Spans; failed: their receiver did not take them; dropped: too many waited for it.",
    lambda s: dict.fromkeys(SPAN_RESULTS, 0) if s.sources.spans is None else s.sources.spans.counts,
    result=SPAN_RESULTS,
)
_limits.gauge(
    "reput_config_reload_success",
    "1 if the last reload of the configuration succeeded, or none was tried.",
    lambda s: int(s.sources.config_reload_ok),
)
_limits.gauge(
    "reput_config_reload_time_seconds",
    "Unix time of the last successful reload, or of the start.",
    lambda s: s.sources.config_reload_time_s,
)
_limits.gauge(
    "reput_metrics_dropped_series",
    "Series left out because of metrics.max_series: those of queues first, then the histograms of topics.",
    lambda s: s.budget.dropped,
)

_tls = Section("TLS")
_tls.counter(
    "reput_tls_handshakes_total",
    "On ports with TLS: connections that were encrypted (ok), whose handshake failed, and that began without TLS "
    "(plain).",
    lambda s: (
        ((name, result), count) for name, of in s.counters.listeners.items() for result, count in of.handshakes.items()
    ),
    listener=counters.LISTENERS,
    result=counters.HANDSHAKES,
)
_tls.gauge(
    "reput_tls_certificate_end_time_seconds",
    "Unix time at which the certificate of tls.cert ends, or the last authority of tls.ca.",
    lambda s: {} if s.sources.tls is None else s.sources.tls.end_times_s,
    file=ANY,
)
_tls.gauge(
    "reput_tls_reload_success",
    "1 if the files of certificates could be used when they last changed; else those read before are in use.",
    lambda s: int(s.sources.tls is None or s.sources.tls.reload_ok),
)

_proxy = Section("Proxy of proxy_port")
_proxy.gauge(
    "reput_proxy_ready",
    "1 while the proxy serves gRPC clients and reaches a broker.",
    _of_proxy(lambda p: int(p.is_ready)),
)
_proxy.counter("reput_proxy_starts_total", "Starts of its process: one, unless it ends.", _of_proxy(lambda p: p.starts))
_proxy.counter(
    "reput_proxy_requests_total",
    "Requests with a response, by method and code.",
    _of_proxy(lambda p: (((method, code), count) for method, code, count in p.figures.requests)),
    method=ANY,
    code=ANY,
)
_proxy.counter(
    "reput_proxy_sent_messages_total", "Messages that brokers have stored.", _of_proxy(lambda p: p.figures.sent)
)
_proxy.counter(
    "reput_proxy_received_messages_total",
    "Messages that clients have received.",
    _of_proxy(lambda p: p.figures.received),
)
_proxy.counter(
    "reput_proxy_acknowledged_messages_total",
    "Messages that clients acknowledged.",
    _of_proxy(lambda p: p.figures.acknowledged),
)
_proxy.gauge("reput_proxy_clients", "Telemetry streams that are open.", _of_proxy(lambda p: p.figures.clients))
_proxy.gauge(
    "reput_proxy_waiting_receives",
    "Receives and pulls that wait for messages.",
    _of_proxy(lambda p: p.figures.waiting_receives),
)
_proxy.gauge(
    "reput_proxy_held_messages",
    "Messages of push consumers, whose invisible times are renewed.",
    _of_proxy(lambda p: p.figures.held_messages),
)

METRICS: dict[str, MetricSpec] = by_name(
    (
        _process,
        _requests,
        _traffic,
        _name_servers,
        _consumers,
        _delays,
        _schedules,
        _replication,
        _store,
        _histograms,
        _queues,
        _limits,
        _tls,
        _proxy,
    )
)
