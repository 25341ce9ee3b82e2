"""What the broker counts: plain integers, added to where the work happens.

A labelled metric object costs over a microsecond a call, an integer add 50 ns, so this module does not use Prometheus.
`metrics.py` turns the numbers into series when they are scraped.

Label values come from closed sets: unknown request codes share one entry, and topics and groups are counted only once
they are known to exist.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import inf
from typing import Final

from reput_protocol.codes import RequestCode
from reput_protocol.names import DLQ_PREFIX, RETRY_PREFIX
from reput_protocol.proxy_process import ProxyFigures

REPLY_RESULTS = ("delivered", "no_requester", "not_taken")
KINDS = ("normal", "ordered", "delayed", "transactional", "retry", "dlq")
REJECT_REASONS = (
    "too_large",
    "no_topic",
    "no_permission",
    "quota",
    "busy",
    "disk_full",
    "bad_crc",
    "malformed",
    "expired",
)
CLOSE_REASONS = (
    "peer", "idle", "malformed", "slow_reader", "slow_sender", "memory", "auth", "limit", "tls", "shutdown", "error",
    "operator",
)  # fmt: skip
LISTENERS = ("main", "name", "fast")
HANDSHAKES = ("ok", "failed", "plain")
ROLES = ("producer", "consumer", "admin", "broker", "unknown")
REPLICATION_ROLES = ("ASYNC_MASTER", "SYNC_MASTER", "SLAVE")
AUTH_FAILURES = ("bad_credentials", "forbidden", "expired")
ACK_RESULTS = ("ack", "nack", "expired", "late")
REGISTRATION_RESULTS = ("ok", "failed")
PROTOCOL_ERROR_REASONS = ("malformed", "too_large", "unknown_header_type")
ACK_LEVELS = ("page_cache", "flushed", "replicated")
FLUSH_PARTS = ("commitlog", "consumequeue")
DELETED_PARTS = ("commitlog", "consumequeue", "index")
DELETE_REASONS = ("time", "disk")
MEMORY_KINDS = ("read", "write", "longpoll")
BACKPRESSURE_CAUSES = ("write_queue", "memory", "disk", "quota")
REBALANCE_REASONS = ("join", "leave", "timeout", "topic_change")
PROTOCOLS = {0: "json", 1: "binary", 0x4D: "msgpack"}

PUT_TIMES = {
    "[<=0ms]": 0.001, "[0~10ms]": 0.01, "[10~50ms]": 0.05, "[50~100ms]": 0.1, "[100~200ms]": 0.2,
    "[200~500ms]": 0.5, "[500ms~1s]": 1.0, "[1~2s]": 2.0, "[2~3s]": 3.0, "[3~4s]": 4.0, "[4~5s]": 5.0,
    "[5~10s]": 10.0, "[10s~]": inf,
}  # fmt: skip
"""RocketMQ's classes of put times and their ends in seconds (StoreStatsService)."""
REQUEST_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
DELIVER_SECONDS = (0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 30.0, 300.0)
LOOP_DELAY_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
FLUSH_SECONDS = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)
FLUSH_BATCH_MESSAGES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)
MESSAGE_BYTES = (256.0, 1024.0, 4096.0, 16384.0, 65536.0, 262144.0, 1048576.0, 4194304.0)
ROCKETMQ_MESSAGE_BYTES = (1024.0, 4096.0, 524288.0, 1048576.0, 2097152.0, 4194304.0)
SIZE_BYTES = tuple(sorted({*MESSAGE_BYTES, *ROCKETMQ_MESSAGE_BYTES}))
"""The buckets that are counted; each page shows its own."""
ROCKETMQ_RPC_SECONDS = (0.001, 0.003, 0.005, 0.007, 0.01, 0.1, 1.0, 2.0, 3.0)
ROCKETMQ_CREATE_SECONDS = (0.01, 0.1, 1.0, 3.0, 5.0)
ANSWER_SECONDS = tuple(sorted({*REQUEST_SECONDS, *ROCKETMQ_RPC_SECONDS, *ROCKETMQ_CREATE_SECONDS}))
"""Likewise."""
FINISH_SECONDS = (5.0, 60.0, 600.0, 3600.0, 43200.0, 86400.0)
AHEAD_SECONDS = (60.0, 600.0, 3600.0, 43200.0, 86400.0, 259200.0)

UNKNOWN_CODE = -1
"""The request code under which unknown codes are counted."""
PULL_WAIT_CODE = -2
"""The request code under which held pulls (long polls) are counted, op `pull_wait`."""

_KNOWN_CODES = frozenset(int(code) for code in RequestCode)


class Histogram:
    """Counts per bucket; bucket i counts values in (bounds[i-1], bounds[i]], the last bucket those above."""

    __slots__ = ("bounds", "buckets", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.buckets = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Count `value`, `count` times."""
        self.buckets[bisect_left(self.bounds, value)] += count
        self.total += value * count

    @property
    def count(self) -> int:
        """How many values were observed."""
        return sum(self.buckets)

    def cumulated(self, bounds: tuple[float, ...]) -> Iterator[tuple[float, int]]:
        """Yield how many values are at most each of `bounds`, which are some of the histogram's, then all of them."""
        count = 0
        for bound, values in zip(self.bounds, self.buckets, strict=False):
            count += values
            if bound in bounds:
                yield bound, count
        yield inf, count + self.buckets[-1]

    def in_milliseconds(self) -> Histogram:
        """Return a copy of a histogram of seconds, in milliseconds."""
        copy = Histogram(tuple(bound * 1000 for bound in self.bounds))
        copy.buckets, copy.total = self.buckets.copy(), self.total * 1000
        return copy


def merged(histograms: Iterable[Histogram]) -> Histogram:
    """Return the sum of histograms with the same bounds, of which there is at least one."""
    first, *others = histograms
    if not others:
        return first
    together = Histogram(first.bounds)
    together.buckets = [sum(counts) for counts in zip(first.buckets, *(h.buckets for h in others), strict=True)]
    together.total = first.total + sum(h.total for h in others)
    return together


class TopicTraffic:
    """Messages accepted into one topic, by kind, and the age of messages when they were delivered."""

    __slots__ = ("deliver_seconds", "duplicates", "kind", "puts", "sizes")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        """Of messages of no other kind."""
        self.sizes: dict[str, Histogram] = {kind: Histogram(SIZE_BYTES)}
        """By kind: how many messages of which size. Their total is the bytes accepted."""
        self.puts = 0
        """Requests that brought them."""
        self.duplicates = 0
        self.deliver_seconds = Histogram(DELIVER_SECONDS)

    def count_in(self, messages: int, size_b: int, kind: str = "normal") -> None:
        """Count accepted messages; `size_b` is the size of their records together.

        They count with their mean size: measuring each would cost more than appending it.
        """
        if kind == "normal":
            kind = self.kind
        sizes = self.sizes.get(kind)
        if sizes is None:
            sizes = self.sizes[kind] = Histogram(SIZE_BYTES)
        if messages:
            self.puts += 1
            sizes.buckets[bisect_left(SIZE_BYTES, size_b / messages)] += messages  # a call less for each put
            sizes.total += size_b

    @property
    def messages_in(self) -> dict[str, int]:
        """Messages accepted, by kind."""
        return {kind: sizes.count for kind, sizes in self.sizes.items()}

    @property
    def bytes_in(self) -> int:
        """Bytes of the messages accepted."""
        return int(sum(sizes.total for sizes in self.sizes.values()))


class GroupTraffic:
    """Messages of one topic delivered to one consumer group."""

    __slots__ = ("bytes_out", "expired", "messages_out", "pulls")

    def __init__(self) -> None:
        self.messages_out = 0
        self.bytes_out = 0
        self.pulls = 0
        """Requests that fetched them."""
        self.expired = 0
        """Messages that were not delivered because they had expired."""

    def count_out(self, messages: int, size_b: int) -> None:
        """Count delivered messages; `size_b` is the size of their records together."""
        self.messages_out += messages
        self.bytes_out += size_b
        self.pulls += 1


class RequestTraffic:
    """Requests of one code under one header type: duration by answer, in flight."""

    __slots__ = ("answers", "inflight")

    def __init__(self) -> None:
        self.answers: dict[int, Histogram] = {0: Histogram(ANSWER_SECONDS)}
        """By response code: how many answers after which time."""
        self.inflight = 0

    def begin(self) -> None:
        """Count a request that was read."""
        self.inflight += 1

    def done(self, response_code: int, duration_s: float, count: int = 1) -> None:
        """Count answers that were queued, or oneway requests that were handled, after `duration_s`."""
        self.inflight -= count
        seconds = self.answers.get(response_code)
        if seconds is None:
            seconds = self.answers[response_code] = Histogram(ANSWER_SECONDS)
        seconds.buckets[bisect_left(ANSWER_SECONDS, duration_s)] += count  # a call less for each request
        seconds.total += duration_s * count

    def abandoned(self, count: int = 1) -> None:
        """Count requests that will not be answered, because their connection has ended."""
        self.inflight -= count


class TrafficByTopic(dict[str, TopicTraffic]):
    """The counters of topics, made at first use: only for topics that exist."""

    def __missing__(self, topic: str) -> TopicTraffic:
        traffic = self[topic] = TopicTraffic(topic_kind(topic))
        return traffic


class TrafficByRequest(dict[tuple[int, int], RequestTraffic]):
    """The counters of requests by header type and code, made at first use; unknown codes share one entry."""

    def __missing__(self, key: tuple[int, int]) -> RequestTraffic:
        header_type, code = key
        if code not in _KNOWN_CODES and code != PULL_WAIT_CODE:
            code = UNKNOWN_CODE
        return self.setdefault((header_type, code), RequestTraffic())


class ListenerTraffic:
    """Connections and frame bytes of one listener (`main` or `name`)."""

    __slots__ = ("bytes_in", "bytes_out", "closed", "handshakes", "open_by_role", "opened")

    def __init__(self) -> None:
        self.opened = 0
        self.handshakes: dict[str, int] = dict.fromkeys(HANDSHAKES, 0)
        self.closed: dict[str, int] = dict.fromkeys(CLOSE_REASONS, 0)
        self.open_by_role: dict[str, int] = dict.fromkeys(ROLES, 0)
        self.bytes_in = 0
        self.bytes_out = 0

    @property
    def open(self) -> int:
        """Connections open now."""
        return sum(self.open_by_role.values())

    def connection_opened(self) -> None:
        """Count an accepted connection; its role is `unknown` until a request shows it."""
        self.opened += 1
        self.open_by_role["unknown"] += 1

    def role_known(self, role: str) -> None:
        """Note the role of a connection: one of ROLES."""
        self.open_by_role["unknown"] -= 1
        self.open_by_role[role] += 1

    def connection_closed(self, reason: str, role: str = "unknown") -> None:
        """Count a connection of `role` that ended for `reason` (one of CLOSE_REASONS)."""
        self.open_by_role[role] -= 1
        self.closed[reason] += 1


class NameServerTraffic:
    """Registrations of this broker with one name server."""

    __slots__ = ("is_registered", "registrations")

    def __init__(self) -> None:
        self.is_registered = False
        self.registrations = dict.fromkeys(REGISTRATION_RESULTS, 0)


@dataclass(slots=True)
class ProxyCounters:
    """The proxy of `proxy_port`: how often it was started, and what its process reports."""

    starts: int = 0
    is_ready: bool = False
    """Whether it serves and reaches a broker."""
    figures: ProxyFigures = field(default_factory=ProxyFigures)


class Counters:
    """Everything counted since the broker started. One owner: the event loop."""

    def __init__(self) -> None:
        self.topics = TrafficByTopic()
        self.groups: defaultdict[tuple[str, str], GroupTraffic] = defaultdict(GroupTraffic)
        """By topic and group that takes its messages: made at first use, so only for those that exist."""
        self.requests = TrafficByRequest()
        self.name_servers: dict[str, NameServerTraffic] = {}
        self.listeners: dict[str, ListenerTraffic] = {name: ListenerTraffic() for name in LISTENERS}
        self.rejected: dict[str, int] = dict.fromkeys(REJECT_REASONS, 0)
        self.protocol_errors: dict[tuple[str, str], int] = {
            (protocol, reason): 0 for protocol in (*PROTOCOLS.values(), "unknown") for reason in PROTOCOL_ERROR_REASONS
        }
        self.produce_seconds: dict[str, Histogram] = {level: Histogram(REQUEST_SECONDS) for level in ACK_LEVELS}
        self.put_seconds = Histogram(tuple(PUT_TIMES.values()))
        """From the arrival of a put until it is in the log, in RocketMQ's classes."""
        self.longest_put_s = 0.0
        self.flush_seconds: dict[str, Histogram] = {part: Histogram(FLUSH_SECONDS) for part in FLUSH_PARTS}
        self.flush_errors: dict[str, int] = dict.fromkeys(FLUSH_PARTS, 0)
        self.segments_deleted: dict[tuple[str, str], int] = {
            (part, reason): 0 for part in DELETED_PARTS for reason in DELETE_REASONS
        }
        self.deleted_bytes: dict[str, int] = dict.fromkeys(DELETED_PARTS, 0)
        self.flush_batch_messages = Histogram(FLUSH_BATCH_MESSAGES)
        self.loop_delay_seconds = Histogram(LOOP_DELAY_SECONDS)
        self.backpressure_seconds: dict[str, float] = dict.fromkeys(BACKPRESSURE_CAUSES, 0.0)
        self.rebalances: dict[tuple[str, str], int] = {}
        """Changes of groups, by group and one of REBALANCE_REASONS; their members rebalance the queues."""
        self.subscription_conflicts: dict[str, int] = {}
        """By group: heartbeats of members that subscribe to something else than another member."""
        self.acks: dict[tuple[str, str], int] = {}
        """By group and one of ACK_RESULTS, without `nack`: see `RetryCounts.nacks`."""
        self.retry = RetryCounts()
        self.auth_failures: dict[str, int] = dict.fromkeys(AUTH_FAILURES, 0)
        self.pulls_throttled = 0
        """Pulls refused because their client has too many waiting."""
        self.replies: dict[str, int] = dict.fromkeys(REPLY_RESULTS, 0)
        self.buffered_bytes: dict[str, int] = dict.fromkeys(MEMORY_KINDS, 0)
        """Bytes held for connections now: read and not handled, answered and not sent, held."""

    def protocol_error(self, header_type: int | None, reason: str) -> None:
        """Count a connection that broke the framing rules: `reason` is one of PROTOCOL_ERROR_REASONS."""
        protocol = PROTOCOLS.get(header_type, "unknown") if header_type is not None else "unknown"
        self.protocol_errors[protocol, reason] += 1

    def note_rebalance(self, group: str, reason: str) -> None:
        """Count a change of the members or topics of an existing group, for one of REBALANCE_REASONS."""
        self.rebalances[group, reason] = self.rebalances.get((group, reason), 0) + 1

    def note_subscription_conflict(self, group: str) -> None:
        """Count a member of an existing group that subscribes to something else than another one."""
        self.subscription_conflicts[group] = self.subscription_conflicts.get(group, 0) + 1

    def note_acks(self, group: str, result: str, count: int = 1) -> None:
        """Count acknowledgements of an existing group: `result` is one of ACK_RESULTS."""
        self.acks[group, result] = self.acks.get((group, result), 0) + count

    def forget_group(self, group: str) -> None:
        """Drop the counters of a deleted group, so that its series end."""
        self.subscription_conflicts.pop(group, None)
        self.retry.forget_group(group)
        for reason in REBALANCE_REASONS:
            self.rebalances.pop((group, reason), None)
        for result in ACK_RESULTS:
            self.acks.pop((group, result), None)
        for key in [key for key in self.groups if key[1] == group]:
            del self.groups[key]

    def forget_topic(self, topic: str) -> None:
        """Drop the counters of a deleted topic, so that its series end."""
        self.topics.pop(topic, None)
        self.retry.forget_topic(topic)
        for key in [key for key in self.groups if key[0] == topic]:
            del self.groups[key]


def topic_kind(topic: str) -> str:
    """Return the `kind` of messages in a topic, from its name: `retry`, `dlq`, else `normal`."""
    if topic.startswith(RETRY_PREFIX):
        return "retry"
    if topic.startswith(DLQ_PREFIX):
        return "dlq"
    return "normal"


TRANSACTION_RESULTS: Final = ("commit", "rollback", "timeout")
CHECK_RESULTS: Final = ("commit", "rollback", "unknown", "no_producer")


class RetryCounts:
    """Retries, dead letters and transactions. One owner: the event loop."""

    def __init__(self) -> None:
        self.retries: Counter[tuple[str, str]] = Counter()
        """Messages sent back, by group and original topic."""
        self.nacks: Counter[str] = Counter()
        """Messages that members sent back, by group."""
        self.dead_letters: Counter[tuple[str, str]] = Counter()
        self.transactions: Counter[tuple[str, str]] = Counter()
        """By topic and one of TRANSACTION_RESULTS."""
        self.checks: Counter[tuple[str, str]] = Counter()
        """By topic and one of CHECK_RESULTS."""
        self.finish_seconds: dict[str, Histogram] = {}
        """By topic: how long transactions took that were committed."""

    def committed(self, topic: str, duration_s: float) -> None:
        """Count a committed transaction of an existing topic."""
        self.transactions[topic, "commit"] += 1
        seconds = self.finish_seconds.get(topic)
        if seconds is None:
            seconds = self.finish_seconds[topic] = Histogram(FINISH_SECONDS)
        seconds.observe(max(0.0, duration_s))

    def forget_topic(self, topic: str) -> None:
        """Drop the counts of a topic."""
        self.finish_seconds.pop(topic, None)
        for table in (self.retries, self.dead_letters):
            for key in [key for key in table if key[1] == topic]:
                del table[key]
        for table in (self.transactions, self.checks):
            for key in [key for key in table if key[0] == topic]:
                del table[key]

    def forget_group(self, group: str) -> None:
        """Drop the counts of a group."""
        self.nacks.pop(group, None)
        for table in (self.retries, self.dead_letters):
            for key in [key for key in table if key[0] == group]:
                del table[key]


DELAY_ERROR_SECONDS = (0.001, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 60.0)
UNKNOWN_TOPIC = "unknown"
"""Stands for a topic of which only a hash is known."""
DROP_REASONS = ("no_topic", "lost", "unreadable", "refused")
"""Its topic was deleted; its record has left the log or is damaged; it names no destination; the store refuses it."""

TIME_MISSED_REASONS = ("late", "no_topic", "refused")
"""No broker could send in time; the topic does not exist; the topic or the store takes no such message."""

_DROPPED_MAX: Final = 65_536


class DelayStats:
    """Numbers of delayed messages. One owner: the event loop."""

    def __init__(self) -> None:
        self.waiting: Counter[str] = Counter()
        """Delayed messages, by destination topic; complete some time after the start."""
        self.delivered: Counter[str] = Counter()
        self.cancelled: Counter[str] = Counter()
        self.dropped: dict[str, int] = dict.fromkeys(DROP_REASONS, 0)
        self.dropped_places: OrderedDict[int, None] = OrderedDict()
        """Log offsets of the delayed records dropped last in this run."""
        self.rolled = 0
        """Messages that were delayed again on their way."""
        self.error_seconds = Histogram(DELAY_ERROR_SECONDS)
        """Delivered minus due."""
        self.ahead_seconds: dict[str, Histogram] = {}
        """By topic: how far ahead messages with a deliver time were sent."""

    def note_sent_ahead(self, topic: str, seconds: float) -> None:
        """Count a message with a deliver time that waits from now on."""
        ahead = self.ahead_seconds.get(topic)
        if ahead is None:
            ahead = self.ahead_seconds[topic] = Histogram(AHEAD_SECONDS)
        ahead.observe(seconds)

    def note_dropped(self, reason: str, physical_offset: int) -> None:
        """Count a message that will not be delivered."""
        self.dropped[reason] += 1
        self.dropped_places[physical_offset] = None
        if len(self.dropped_places) > _DROPPED_MAX:
            self.dropped_places.popitem(last=False)

    def topics(self) -> list[str]:
        """Return the topics with numbers."""
        return sorted({*(t for t, n in self.waiting.items() if n), *self.delivered, *self.cancelled})


class ScheduleStats:
    """Numbers of what schedules have sent. One owner: the event loop."""

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()
        """Messages, by topic."""
        self.missed: dict[str, int] = dict.fromkeys(TIME_MISSED_REASONS, 0)
        """Times for which no message is sent, by reason."""
        self.late_seconds = Histogram(DELAY_ERROR_SECONDS)
        """From the time of a message to when it was put."""
