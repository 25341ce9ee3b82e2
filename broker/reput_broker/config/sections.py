"""The sections of the configuration, `[store]` to `[console]`: name, default, range and unit of every option.

Options marked live can change while the broker runs; the others take effect at the next start.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic.config import JsonDict

from reput_broker.config.units import Address, Directories, Duration, HoursOfDay, Size, Url, Urls
from reput_broker.store.memory_limit import memory_limit_bytes
from reput_protocol.signature import Credentials, check_secret, check_user_name

LOCK_TIMEOUT_MIN_S: Final = 40.0
"""Members renew their locks every 20 s and consume for 30 s after the last confirmation, in RocketMQ's clients
(REBALANCE_LOCK_INTERVAL, REBALANCE_LOCK_MAX_LIVE_TIME) and the bundled one. No other member may lock the queue before;
the rest is margin."""

_MIB = 1 << 20
_HOUR = 3600.0
_DAY = 86_400.0


class Section(BaseModel):
    """A table of options: unknown ones and values of other types are refused, and only a reload changes it."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, validate_default=False)


def option(default: Any, description: str, *, live: bool = False, secret: bool = False, **limits: Any) -> Any:
    """Declare an option; `live` marks one that a reload changes while the broker runs, `secret` one never shown."""
    extra: JsonDict = {"live": live, "secret": secret}
    return Field(default, description=description, json_schema_extra=extra, repr=not secret, **limits)


class AccessConfig(Section):
    """Who may do what; see docs/security.md."""

    enabled: bool = option(
        False,
        "check the signature and the rights of every request; needed beyond loopback, see allow_insecure",
    )
    file: str = option("", 'file with the users and their rights; "": data_dir/access/users.json')
    admin_user: str = option("admin", "name of the administrator with admin_secret")
    admin_secret: str = option(
        "", 'secret of an administrator besides the users of the file; "": there is none', secret=True
    )
    generate_admin: bool = option(
        False,
        "without any user at a start, make admin_user with a new secret, in admin.secret next to the users' file",
    )
    broker_user: str = option(
        "", 'user that signs this broker\'s requests to other brokers and name servers; "": admin_user'
    )
    broker_secret: str = option("", "secret of broker_user", secret=True)
    accept_rocketmq_signatures: bool = option(
        True,
        "take signatures in RocketMQ's form too, which cover less than Reput's; RocketMQ's clients and mqadmin need it",
    )
    send_rocketmq_signatures: bool = option(
        True,
        "sign this broker's requests in RocketMQ's form to brokers and name servers that do not know Reput's",
    )
    signature_tolerance: Duration = option(
        300.0, "how old a request may be that is signed in Reput's form", ge=1.0, le=86_400.0
    )
    first_signature_timeout: Duration = option(
        10.0,
        "with access control, how long a connection may be open before its first valid signature",
        ge=0.1,
        le=600.0,
    )

    @field_validator("admin_user", "broker_user")
    @classmethod
    def _valid_name(cls, value: str, info: ValidationInfo) -> str:
        return value if not value and info.field_name == "broker_user" else check_user_name(value)

    @field_validator("admin_secret", "broker_secret")
    @classmethod
    def _valid_secret(cls, value: str) -> str:
        return check_secret(value) if value else value

    def credentials(self) -> Credentials | None:
        """Return what requests to other brokers are signed with; None if no secret is configured."""
        user, secret = (
            (self.broker_user, self.broker_secret)
            if self.broker_user
            else (self.admin_user, self.admin_secret)
        )
        if not secret:
            return None
        return Credentials(user, secret, rocketmq_signatures=self.send_rocketmq_signatures)


class StoreConfig(Section):
    """How messages are kept."""

    flush: Literal["sync", "async"] = option(
        "sync",
        "sync: consumers see only what is on disk, and a put waits for that unless it requests less; "
        "async: the log is synced at intervals, see flush_interval",
    )
    flush_interval: Duration = option(
        0.5,
        "with flush = async, interval at which the log is checked for a sync",
        live=True,
        ge=0.001,
        le=600.0,
    )
    flush_least_pages: int = option(
        0,
        "with flush = async, unsynced pages of 4 KiB from which a check syncs the log; 0: any byte",
        live=True,
        ge=0,
        le=1 << 18,
    )
    flush_thorough_interval: Duration = option(
        10.0,
        "with flush = async, interval at which the log is synced however little there is",
        live=True,
        ge=0.001,
        le=600.0,
    )
    sync_timeout: Duration = option(
        5.0,
        "how long a put waits for its sync; after that, the answer reports that it was not reached",
        live=True,
        ge=0.01,
        le=600.0,
    )
    commit_log_file_size: Size = option(
        1024 * _MIB,
        "size of one file of the log, preallocated; fixed once a store exists",
        ge=4096,
        le=1 << 31,
    )
    commit_log_dirs: Directories = option(
        (),
        'directories for files of the log, instead of data_dir/commitlog; a list, or "/disk1/log,/disk2/log"',
    )
    read_only_commit_log_dirs: Directories = option(
        (), "directories with files of the log in which no new ones are created", validate_default=True
    )
    warm_mapped_file: bool = option(
        False, "load the pages of a file of the log, and lock them into memory, before the file is used"
    )
    read_ahead: bool = option(
        True,
        "whether the operating system reads ahead in the log where a consumer reads old messages from the disk",
        live=True,
    )
    transient_store_pool_size: int = option(
        5, "with transient_store_pool, how many buffers of commit_log_file_size there are", ge=1, le=1024
    )
    transient_store_pool: bool = option(
        False,
        "append to buffers in memory, which a background task commits to the files of the log",
    )
    fast_fail_if_no_buffer: bool = option(
        False,
        "with transient_store_pool, refuse puts while no buffer is free; otherwise they go into the file itself",
    )
    os_page_cache_busy_timeout: Duration = option(
        1.0,
        "how long a put may wait for a file of the log before others are refused",
        live=True,
        ge=0.01,
        le=3600.0,
    )
    commit_interval: Duration = option(
        0.2,
        "with transient_store_pool, interval at which the log is checked for a commit",
        live=True,
        ge=0.001,
        le=600.0,
    )
    commit_least_pages: int = option(
        4,
        "with transient_store_pool, uncommitted pages of 4 KiB from which a check commits; 0: any byte",
        live=True,
        ge=0,
        le=1 << 18,
    )
    commit_thorough_interval: Duration = option(
        0.2,
        "with transient_store_pool, interval at which the log is committed however little there is",
        live=True,
        ge=0.001,
        le=600.0,
    )
    consume_queue_entries: int = option(
        300_000, "entries of 20 bytes in one file of a queue; fixed once a store exists", ge=1, le=100_000_000
    )
    index: bool = option(True, "keep an index of message keys and unique ids, for queries")
    index_slots: int = option(
        5_000_000, "hash slots in one file of the key index; fixed once a store exists", ge=1, le=500_000_000
    )
    index_entries: int = option(
        20_000_000, "entries in one file of the key index; fixed once a store exists", ge=2, le=500_000_000
    )
    message_size_max: Size = option(4 * _MIB, "the largest body of a message", ge=1, le=8 * _MIB)
    record_crc: bool = option(
        False,
        "write a checksum over the whole record, not only over the body, into records that the broker encodes itself",
    )
    consume_queue_ext: bool = option(
        False,
        "keep extended entries of the queues (consumequeue_ext), as RocketMQ's enableConsumeQueueExt does; "
        "cannot be turned off again for a store that has some",
    )
    consume_queue_ext_file_size: Size = option(
        48 * _MIB,
        "size of one file of extended entries; fixed once a store has some",
        ge=32_771,
        le=(1 << 31) - 1,
    )
    consume_queue_flush_interval: Duration = option(
        1.0, "interval at which queues are checked for a sync", live=True, ge=0.01, le=600.0
    )
    consume_queue_flush_least_pages: int = option(
        0,
        "unsynced pages of 4 KiB from which a check syncs a queue; 0: any entry",
        live=True,
        ge=0,
        le=1 << 18,
    )
    consume_queue_flush_thorough_interval: Duration = option(
        60.0,
        "interval at which every queue is synced however little there is, and the checkpoint written",
        live=True,
        ge=0.01,
        le=3600.0,
    )
    checkpoint_interval: Duration = option(
        1.0,
        "interval at which the checkpoint is written, from which recovery starts",
        live=True,
        ge=0.01,
        le=600.0,
    )
    file_reserved_time: Duration = option(
        72 * _HOUR, "how long a file of the log is kept after its last change", live=True, ge=1.0
    )
    delete_when: HoursOfDay = option(
        "04", 'local hours in which expired files are deleted, such as "04" or "04;16"', live=True
    )
    disk_max_used_ratio: float = option(
        0.75, "above this use of the disk expired files are deleted at any hour", live=True, ge=0.1, le=1.0
    )  # fmt: skip
    disk_clean_forcibly_ratio: float = option(
        0.85,
        "above this use of the disk the oldest files are deleted at any age; 1.0 is never",
        live=True,
        ge=0.1,
        le=1.0,
        validate_default=True,
    )
    disk_warning_ratio: float = option(
        0.9,
        "above this use of the disk puts are refused, until it is down to disk_clean_forcibly_ratio; 1.0 is never",
        live=True,
        ge=0.1,
        le=1.0,
        validate_default=True,
    )
    clean_file_forcibly: bool = option(
        True, "whether files may be deleted early because the disk is too full", live=True
    )
    delete_files_batch: int = option(
        10, "maximal number of files of the log deleted in one round", live=True, ge=1, le=10_000
    )
    delete_files_interval: Duration = option(
        0.1, "pause after a deleted file of the log, or after a queue that lost files", live=True, ge=0.0, le=60.0
    )  # fmt: skip
    clean_interval: Duration = option(
        10.0, "interval at which expired files and the use of the disk are checked", live=True, ge=0.1, le=3600.0
    )  # fmt: skip
    clean_delay: Duration = option(
        60.0, "time from the start to the first of these checks", ge=0.0, le=86400.0
    )
    destroy_forcibly_interval: Duration = option(
        120.0, "how long deletion of a file waits for its readers", live=True, ge=0.0, le=86400.0
    )  # fmt: skip
    redelete_hanged_interval: Duration = option(
        120.0, "time between two attempts to delete a file that was being read", live=True, ge=0.1, le=86400.0
    )  # fmt: skip

    @field_validator("read_only_commit_log_dirs")
    @classmethod
    def _leaves_a_directory(cls, value: tuple[Path, ...], info: ValidationInfo) -> tuple[Path, ...]:
        named = info.data.get("commit_log_dirs")
        if named and not set(named) - set(value):
            raise ValueError("it names all of store.commit_log_dirs, and none is left for new files")
        return value

    @field_validator("transient_store_pool")
    @classmethod
    def _fits_into_memory(cls, value: bool, info: ValidationInfo) -> bool:
        size = info.data.get("transient_store_pool_size", 0) * info.data.get("commit_log_file_size", 0)
        memory = memory_limit_bytes()
        if value and size > memory:
            raise ValueError(
                f"the buffers take {size} bytes and there are {memory} bytes of memory; lower "
                "store.transient_store_pool_size or store.commit_log_file_size"
            )
        return value

    @field_validator("disk_clean_forcibly_ratio", "disk_warning_ratio")
    @classmethod
    def _not_below_the_one_before(cls, value: float, info: ValidationInfo) -> float:
        before = {
            "disk_clean_forcibly_ratio": "disk_max_used_ratio",
            "disk_warning_ratio": "disk_clean_forcibly_ratio",
        }[info.field_name or ""]
        least = info.data.get(before)
        if least is not None and value < least:
            raise ValueError(
                f"{value} is below store.{before} ({least}); files are deleted before puts are refused"
            )
        return value


class HAConfig(Section):
    """Replication: the role of this broker, what it waits for, and how a master and its slaves talk."""

    role: Literal["ASYNC_MASTER", "SYNC_MASTER", "SLAVE"] = option(
        "ASYNC_MASTER",
        "SYNC_MASTER: puts that name no ack level wait for in_sync_replicas copies; SLAVE: copies its master's log",
    )
    master: Address = option(
        "", 'of a slave: host:port of its master for clients; "" learns it from the name servers'
    )
    master_ha_address: Address = option(
        "",
        'of a slave: host:port of its master\'s ha_port; "" learns it from the name servers, else the port after '
        "that of master",
    )
    in_sync_replicas: int = option(
        1,
        "copies, the master's included, that a put waits for with ack = replicated",
        live=True,
        ge=1,
        le=64,
    )
    max_gap_not_in_sync: Size = option(
        256 * _MIB, "a slave further behind than this is not in sync", live=True, ge=4096, le=1 << 50
    )
    slave_timeout: Duration = option(
        3.0,
        "how long a put waits for its copies; after that, the answer reports that they were not reached",
        live=True,
        ge=0.01,
        le=600.0,
    )
    send_heartbeat_interval: Duration = option(
        5.0, "silence after which master and slave send each other a heartbeat", live=True, ge=0.01, le=600.0
    )
    housekeeping_interval: Duration = option(
        20.0, "silence after which master and slave close their connection", live=True, ge=0.02, le=3600.0
    )
    transfer_batch_size: Size = option(
        256 << 10, "maximal bytes of the log in one frame to a slave", live=True, ge=1024, le=16 * _MIB
    )
    slave_read_enabled: bool = option(
        False, "serve pulls as a slave; as a master, send consumers that are far behind to a slave", live=True
    )
    mutual_proof: bool = option(
        True,
        "with access control: a slave and its master prove to each other that they know the secret of the slave's "
        "user; false accepts brokers of earlier versions, and masters without access control",
    )

    @property
    def copies_if_replicated(self) -> int:
        """Copies that a put with ack = replicated waits for: one on another machine, even if others need none."""
        return max(2, self.in_sync_replicas)


class ElectionConfig(Section):
    """Failover: etcd or Kubernetes elects the master of a group of brokers with one broker_name."""

    etcd: Urls = option(
        (), "URLs of an etcd that elects, any members of it; none and no kubernetes_namespace: no election"
    )
    etcd_user: str = option("", 'user of etcd\'s authentication; "" without it')
    etcd_password_file: str = option("", "file with the password of that user")
    etcd_ca: str = option(
        "", "with https: file with the certificates that sign etcd's; \"\" uses the machine's"
    )
    etcd_cert: str = option("", 'with https: file with the certificate that this broker shows; "" for none')
    etcd_key: str = option("", "file with the key of that certificate")
    kubernetes_namespace: str = option(
        "", "elect by a Lease in this namespace of the Kubernetes that the broker's pod runs in"
    )
    lease: Duration = option(
        10.0,
        "time after which a master that has not renewed its lease is replaced, in whole seconds; the master stops "
        "acknowledging a tenth before",
        ge=3.0,
        le=600.0,
    )
    first_master: int = option(
        0, "broker_id of the member that becomes master while the engine knows nothing of the group", ge=0
    )
    in_sync_timeout: Duration = option(
        10.0,
        "a member leaves the in-sync set that reports nothing, or is not caught up, for so long",
        ge=1.0,
        le=600.0,
    )

    @field_validator("lease")
    @classmethod
    def _whole_seconds(cls, value: float) -> float:
        if value != int(value):
            raise ValueError(f"etcd and Kubernetes count whole seconds, so {value:g} s cannot be kept")
        return value

    @property
    def is_on(self) -> bool:
        """Whether an engine elects the master."""
        return bool(self.etcd or self.kubernetes_namespace)


class TopicsConfig(Section):
    """How topics are created."""

    auto_create: bool = option(True, "create a topic when a message is first sent to it", live=True)
    auto_create_max: int = option(
        10_000, "number of topics at which no more are created that way", live=True, ge=0, le=1_000_000
    )
    default_queues: int = option(4, "queues of a topic created that way", live=True, ge=1, le=1024)


class LimitsConfig(Section):
    """Limits of one client, and of all of them together."""

    frame_size: Size = option(
        16 * _MIB, "the largest frame, its length field included", ge=65536, le=256 * _MIB
    )
    header_size: Size = option(_MIB, "the largest header of a frame", ge=1024, le=16 * _MIB)
    body_size: Size = option(
        256 << 10,
        "the largest body of a request that brings no messages, such as a heartbeat",
        live=True,
        ge=4096,
        le=16 * _MIB,
    )
    connections: int = option(10_000, "connections open at once", live=True, ge=1, le=1_000_000)
    connection_buffer: Size = option(
        16 * _MIB, "unsent answers of one connection; its requests wait beyond that", live=True, ge=65536
    )
    buffer_total: Size = option(
        48 * _MIB,
        "unsent answers, unfinished and unanswered requests of all connections; beyond it the greediest is closed",
        live=True,
        ge=_MIB,
    )
    idle_timeout: Duration = option(
        120.0, "time after which a silent connection is closed", live=True, ge=1.0, le=86400.0
    )
    slow_sender_timeout: Duration = option(
        30.0,
        "time after which a connection that sends a frame slower than 16 KiB a second is closed",
        live=True,
        ge=0.1,
        le=3600.0,
    )
    slow_reader_timeout: Duration = option(
        30.0,
        "time after which a connection that reads its answers slower than 16 KiB a second is closed",
        live=True,
        ge=0.1,
        le=3600.0,
    )
    pull_bytes: Size = option(
        4 * _MIB, "maximal bytes of messages in the answer to a pull", live=True, ge=1024, le=15 * _MIB
    )
    pull_messages: int = option(
        4096, "maximal messages in the answer to a pull", live=True, ge=1, le=1_000_000
    )

    @field_validator("header_size", "pull_bytes")
    @classmethod
    def _below_frame_size(cls, value: int, info: ValidationInfo) -> int:
        frame_size = info.data.get("frame_size")
        if frame_size is not None and value >= frame_size:
            raise ValueError(
                f"{value} bytes do not fit into a frame; keep it below limits.frame_size ({frame_size})"
            )
        return value


class LogConfig(Section):
    """What the broker writes to stderr."""

    format: Literal["auto", "text", "json"] = option("auto", "auto: text on a terminal, otherwise JSON lines")
    level: Literal["debug", "info", "warning", "error"] = option("info", "the least level written", live=True)


class MetricsConfig(Section):
    """The metrics page."""

    max_series: int = option(
        20_000,
        "series of groups, topics and queues on the page; beyond that, series per queue are left out first",
        live=True,
        ge=100,
        le=1_000_000,
    )
    refresh_interval: Duration = option(
        15.0, "interval at which sizes and free space of the disk are looked up", live=True, ge=1.0, le=3600.0
    )


class TracingConfig(Section):
    """Spans of puts and deliveries."""

    endpoint: Url = option(
        "",
        "URL of a receiver of OpenTelemetry's protocol over HTTP, such as http://collector:4318/v1/traces; "
        '"": no spans. It needs the extra otel',
    )
    sample_ratio: float = option(
        0.0,
        "share of the puts and deliveries without a trace context that begin a trace; those with one follow it",
        live=True,
        ge=0.0,
        le=1.0,
    )


class OffsetsConfig(Section):
    """Offsets of consumer groups."""

    flush_interval: Duration = option(
        5.0, "interval at which consumerOffset.json is written; its journal has the commits in between", live=True,
        ge=0.1, le=3600.0,
    )  # fmt: skip
    journal_size_max: Size = option(
        8 * _MIB,
        "size of the journal at which the file is written early",
        live=True,
        ge=4096,
        le=1024 * _MIB,
    )


class LongPollingConfig(Section):
    """Pulls that wait for messages."""

    max_wait: Duration = option(
        25.0, "the longest time for which a pull is held, whatever it requests", live=True, ge=0.1, le=600.0
    )
    client_memory_max: Size = option(
        8 * _MIB,
        "memory for the held pulls of one client: about 2 KiB for each, and its filter",
        live=True,
        ge=65536,
        le=1 << 36,
    )
    memory_max: Size = option(
        384 * _MIB, "the same for all clients together", live=True, ge=65536, le=1 << 36
    )


class DedupConfig(Section):
    """Deduplication of puts, for producers that request it."""

    window: Duration = option(
        600.0,
        "how long after a message was stored another one with its unique id counts as a duplicate",
        live=True,
        ge=1.0,
        le=30 * 86400.0,
    )


class GroupsConfig(Section):
    """Consumer groups: their members and the locks of queues."""

    auto_create: bool = option(
        True, "create a group at the first heartbeat of a member, or the first pull for it", live=True
    )
    auto_create_max: int = option(
        10_000, "number of groups at which no more are created that way", live=True, ge=0, le=1_000_000
    )
    groups_max: int = option(
        10_000, "maximal number of groups, whichever request creates them", live=True, ge=1, le=1_000_000
    )
    heartbeat_timeout: Duration = option(
        120.0,
        "time after which a member without a heartbeat is removed",
        live=True,
        ge=1.0,
        le=86400.0,
    )
    notify_interval: Duration = option(
        0.1,
        "shortest time between two notifications of a group's members that the group has changed",
        live=True,
        ge=0.0,
        le=10.0,
    )
    client_memory_max: Size = option(
        512 << 10,
        "memory for the groups and subscriptions of one client: about 512 bytes for each, and their texts",
        live=True,
        ge=8192,
        le=1 << 30,
    )
    memory_max: Size = option(
        64 << 20, "the same for all clients together", live=True, ge=64 << 10, le=1 << 36
    )
    lock_timeout: Duration = option(
        60.0,
        "time after which a queue's lock that its member has not renewed is released",
        live=True,
        ge=LOCK_TIMEOUT_MIN_S,
        le=86400.0,
    )
    locks_max: int = option(
        100_000, "maximal number of locks of queues, of all groups together", live=True, ge=1, le=10_000_000
    )
    free_locks_on_unregister: bool = option(
        True, "release the locks of a member that unregisters, instead of letting them expire", live=True
    )
    refuse_subscription_conflicts: bool = option(
        False,
        "refuse members whose subscription differs from that of other members of their group",
        live=True,
    )
    reset_tells_members: bool = option(
        True,
        "when a group's offsets are reset, also notify its members, before they pull again",
        live=True,
    )
    lag_refresh_interval: Duration = option(
        15.0, "interval at which the age of unconsumed messages is looked up", live=True,
        ge=1.0, le=3600.0,
    )  # fmt: skip


class FiltersConfig(Section):
    """Message filters of consumers."""

    sql: bool = option(
        True, "support SQL92 expressions over the properties of messages, not only tags", live=True
    )
    sql_characters_max: int = option(
        4 << 20,
        "characters of all different SQL92 expressions in use at once; about 15 bytes of memory for each",
        live=True,
        ge=8192,
        le=1 << 30,
    )


class SinkConfig(Section):
    """Sinks that publish whole batches exactly once, such as Spark's: records are staged outside the log first."""

    staging_timeout: Duration = option(
        86_400.0,
        "how long staged records of an inactive query are kept",
        live=True,
        ge=1.0,
        le=365 * 86_400.0,
    )
    staging_size_max: Size = option(
        16 << 30,
        "maximal number of staged bytes, of all queries together",
        live=True,
        ge=1 << 20,
        le=1 << 50,
    )
    batch_ids_kept: Duration = option(
        90 * 86_400.0,
        "how long the last batch of a query is remembered after its last commit",
        live=True,
        ge=3600.0,
        le=3650 * 86_400.0,
    )


class DelayConfig(Section):
    """Delayed messages."""

    timer_wheel: bool = option(
        True, "accept messages with a deliver time, not only with a delay level", live=True
    )
    timer_max_delay: Duration = option(
        3 * _DAY, "how far ahead such a time may be", live=True, ge=1.0, le=366 * _DAY
    )
    timer_log_file_size: Size = option(
        100 * _MIB,
        "size of one file of the timer log, 52 bytes a message; fixed once a store has one",
        ge=4096,
        le=(1 << 31) - 1,
    )
    flush_interval: Duration = option(
        1.0,
        "interval at which the schedule's progress is checked for a save",
        live=True,
        ge=0.01,
        le=600.0,
    )


class TransactionsConfig(Section):
    """Half messages: when and how often the broker checks them with their producers."""

    reject: bool = option(False, "refuse new half messages; stored ones can still be ended", live=True)
    timeout: Duration = option(
        6.0,
        "age from which an undecided half message is checked, unless it names another age",
        live=True,
        ge=0.001,
        le=86400.0,
    )
    check_interval: Duration = option(
        30.0, "time between two rounds of checks", live=True, ge=0.01, le=86400.0
    )
    check_max: int = option(
        15, "how often a half message is checked before it is discarded", live=True, ge=1, le=1_000_000
    )
    op_interval: Duration = option(
        3.0,
        "longest time that a decision waits to be written together with others",
        live=True,
        ge=0.001,
        le=600.0,
    )
    op_message_size: Size = option(
        4096, "bytes of decisions that are written together", live=True, ge=16, le=1 << 20
    )


class RepliesConfig(Section):
    """Replies, which the broker delivers to the client that sent the request."""

    store: bool = option(True, "keep a copy of every reply in the cluster's reply topic", live=True)


_TOKEN_LENGTH_MIN: Final = 16


class TlsConfig(Section):
    """Encrypted connections: to the ports of this broker, and of this broker to others."""

    mode: Literal["off", "permissive", "required"] = option(
        "off",
        "of port, name_port, fast_port and ha_port; permissive: clients choose, by the first byte that they send",
    )
    http_mode: Literal["auto", "off", "permissive", "required"] = option(
        "auto", "the same of http_port; auto: as mode"
    )
    cert: str = option(
        "", "file with the certificate of this broker, and those between it and its authority, in PEM"
    )
    key: str = option("", 'file with the key of that certificate, not encrypted; "": it is in cert')
    ca: str = option(
        "",
        "file with the certificates of the authorities that sign those of clients and of other brokers; "
        '"": for other brokers those of the system',
    )
    client_cert: Literal["none", "optional", "required"] = option(
        "none", "whether clients with TLS show a certificate, which ca must have signed; HTTP asks for none"
    )
    connect: bool = option(
        False, "use TLS towards other brokers and name servers, and show them cert if there is one"
    )
    server_name: str = option(
        "", 'name that the certificates of other brokers and name servers have; "": that of their address'
    )
    handshake_timeout: Duration = option(
        10.0, "time that a client gets for the TLS handshake", live=True, ge=0.1, le=600.0
    )

    @property
    def effective_http_mode(self) -> str:
        """The mode of the HTTP port."""
        return self.mode if self.http_mode == "auto" else self.http_mode

    @property
    def is_on(self) -> bool:
        """Whether some port has TLS."""
        return self.mode != "off" or self.effective_http_mode != "off"


class ConsoleConfig(Section):
    """The web console, on the HTTP port."""

    enabled: bool = option(True, "serve the console at /console/")
    token: str = option(
        "",
        "what to log in with, which replaying dead letters and cancelling delayed messages need; "
        '"": no login is possible, and the console only shows',
        secret=True,
    )
    read_without_login: bool = option(
        True, "show everything, bodies of messages too, without login; false needs a token"
    )

    @field_validator("token")
    @classmethod
    def _hard_to_guess(cls, value: str) -> str:
        is_plain = value.isascii() and value.isprintable() and " " not in value
        if value and (len(value) < _TOKEN_LENGTH_MIN or not is_plain):
            raise ValueError(
                f"it must have {_TOKEN_LENGTH_MIN} or more printable ASCII characters without spaces; "
                "`openssl rand -hex 32` makes one"
            )
        return value
