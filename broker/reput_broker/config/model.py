"""Every option of the broker: name, default, range, unit, and whether it can change while the broker runs.

This is the one place where an option is described; `conf/broker.toml` and the error messages
follow it. `load_config` in `loading.py` reads a file, the environment and flags into it; code builds it
directly:

    BrokerConfig(data_dir=path, port=0, store={"flush": "async", "commit_log_file_size": "16MiB"})

A configuration does not change, with one exception: `config_reload.py` sets options marked live on the
object that everybody holds. Whoever wants to follow a live option therefore reads it when it is needed and
does not copy it at start.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    PlainValidator,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from reput_broker.config.combinations import contradictions
from reput_broker.config.dedup import DedupConfig
from reput_broker.config.delay import DelayConfig
from reput_broker.config.errors import ConfigError, problems_of
from reput_broker.config.fields import flatten, option_fields
from reput_broker.config.filters import FiltersConfig
from reput_broker.config.groups import GroupsConfig
from reput_broker.config.replies import RepliesConfig
from reput_broker.config.section import Section as _Section
from reput_broker.config.section import option as _option
from reput_broker.config.sink import SinkConfig
from reput_broker.config.transactions import TransactionsConfig
from reput_broker.config.units import Directories, Duration, HoursOfDay, Size
from reput_broker.store.options import physical_memory_bytes
from reput_protocol.errors import InvalidName
from reput_protocol.names import check_topic

DEFAULT_PORT = 10911
DEFAULT_NAME_PORT = 9876
DEFAULT_HTTP_PORT = 10913

_MIB = 1 << 20
_HOUR = 3600.0


def _to_path(value: object) -> object:
    if value == "":
        raise ValueError(
            'a directory is needed, such as "reput-data"; "." is the one the broker is started in'
        )
    return Path(value) if isinstance(value, str) else value


def _to_port_choice(value: object) -> int | str:
    if value is None or value == "auto":
        return "auto"
    if value == "off":
        return "off"
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 65535:
        return value
    raise ValueError(f'a port from 0 to 65535, "auto" or "off" is needed, not {value!r}')


def _empty_to_none(value: object) -> object:
    return None if value == "" else value


def _to_host_names(value: object) -> tuple[str, ...]:
    names = [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else value
    if not isinstance(names, (list, tuple)) or not all(
        isinstance(name, str) and re.fullmatch(r"[\w.-]+", name) for name in names
    ):
        raise ValueError(f'names without a port are needed, such as ["metrics.example.com"], not {value!r}')
    return tuple(name.lower() for name in names)


DataPath = Annotated[Path, BeforeValidator(_to_path)]
PortChoice = Annotated[int | str, PlainValidator(_to_port_choice)]
Port = Annotated[int, Field(ge=0, le=65535)]


class StoreConfig(_Section):
    """How messages are kept."""

    flush: Literal["sync", "async"] = _option(
        "sync",
        "sync: consumers see only what is on disk, and a put waits for that unless it asks for less; "
        "async: the log is synced by the clock, see flush_interval",
    )
    flush_interval: Duration = _option(
        0.5,
        "with flush = async, time between two looks whether the log should be synced",
        live=True,
        ge=0.001,
        le=600.0,
    )
    flush_least_pages: int = _option(
        0,
        "with flush = async, unsynced pages of 4 KiB that make such a look sync the log; 0: any byte does",
        live=True,
        ge=0,
        le=1 << 18,
    )
    flush_thorough_interval: Duration = _option(
        10.0,
        "with flush = async, time after which the log is synced however little there is",
        live=True,
        ge=0.001,
        le=600.0,
    )
    sync_timeout: Duration = _option(
        5.0,
        "how long a put may wait for its sync before the answer says that it was not reached",
        live=True,
        ge=0.01,
        le=600.0,
    )
    commit_log_file_size: Size = _option(
        1024 * _MIB,
        "size of one file of the log, preallocated; fixed once a store exists",
        ge=4096,
        le=1 << 31,
    )
    commit_log_dirs: Directories = _option(
        (), 'where files of the log lie, if not in data_dir/commitlog; a list, or "/disk1/log,/disk2/log"'
    )
    read_only_commit_log_dirs: Directories = _option(
        (), "where files of the log lie and no new ones are made", validate_default=True
    )
    warm_mapped_file: bool = _option(
        False, "fetch the pages of a file of the log, and lock them into memory, before the file is used"
    )
    transient_store_pool_size: int = _option(
        5, "with transient_store_pool, how many buffers of commit_log_file_size there are", ge=1, le=1024
    )
    transient_store_pool: bool = _option(
        False,
        "append to buffers in memory, which are committed to the files of the log beside everything else",
    )
    fast_fail_if_no_buffer: bool = _option(
        False,
        "with transient_store_pool, refuse puts while no buffer is free; otherwise they go into the file itself",
    )
    commit_interval: Duration = _option(
        0.2,
        "with transient_store_pool, time between two looks whether the log should be committed",
        live=True,
        ge=0.001,
        le=600.0,
    )
    commit_least_pages: int = _option(
        4,
        "with transient_store_pool, uncommitted pages of 4 KiB that make such a look commit; 0: any byte does",
        live=True,
        ge=0,
        le=1 << 18,
    )
    commit_thorough_interval: Duration = _option(
        0.2,
        "with transient_store_pool, time after which the log is committed however little there is",
        live=True,
        ge=0.001,
        le=600.0,
    )
    consume_queue_entries: int = _option(
        300_000, "entries of 20 bytes in one file of a queue; fixed once a store exists", ge=1, le=100_000_000
    )
    index: bool = _option(True, "keep an index of message keys and unique ids, by which messages are found")
    index_slots: int = _option(
        5_000_000, "hash slots in one file of the key index; fixed once a store exists", ge=1, le=500_000_000
    )
    index_entries: int = _option(
        20_000_000, "entries in one file of the key index; fixed once a store exists", ge=2, le=500_000_000
    )
    message_size_max: Size = _option(4 * _MIB, "the largest body of a message", ge=1, le=8 * _MIB)
    record_crc: bool = _option(
        False,
        "write a checksum over the whole record, not only over the body, into records that the broker encodes itself",
    )
    consume_queue_ext: bool = _option(
        False,
        "keep extended entries beside the queues (consumequeue_ext), as RocketMQ's enableConsumeQueueExt does; "
        "cannot be turned off again for a store that has some",
    )
    consume_queue_ext_file_size: Size = _option(
        48 * _MIB,
        "size of one file of extended entries; fixed once a store has some",
        ge=32_771,
        le=(1 << 31) - 1,
    )
    consume_queue_flush_interval: Duration = _option(
        1.0, "time between two looks which queues should be synced", live=True, ge=0.01, le=600.0
    )
    consume_queue_flush_least_pages: int = _option(
        0,
        "unsynced pages of 4 KiB that make such a look sync a queue; 0: any entry does",
        live=True,
        ge=0,
        le=1 << 18,
    )
    consume_queue_flush_thorough_interval: Duration = _option(
        60.0,
        "time after which every queue is synced however little there is, and the checkpoint written",
        live=True,
        ge=0.01,
        le=3600.0,
    )
    checkpoint_interval: Duration = _option(
        1.0,
        "time between two writes of the checkpoint that recovery starts from",
        live=True,
        ge=0.01,
        le=600.0,
    )
    file_reserved_time: Duration = _option(
        72 * _HOUR, "how long a file of the log is kept after its last change", live=True, ge=1.0
    )
    delete_when: HoursOfDay = _option(
        "04", 'local hours in which files past their time are deleted, such as "04" or "04;16"', live=True
    )
    disk_max_used_ratio: float = _option(
        0.75, "above this use of the disk files past their time are deleted at any hour", live=True, ge=0.1, le=1.0
    )  # fmt: skip
    disk_clean_forcibly_ratio: float = _option(
        0.85,
        "above this use of the disk the oldest files are deleted whatever their age; 1.0 is never",
        live=True,
        ge=0.1,
        le=1.0,
        validate_default=True,
    )
    disk_warning_ratio: float = _option(
        0.9,
        "above this use of the disk puts are refused, until it is down to disk_clean_forcibly_ratio; 1.0 is never",
        live=True,
        ge=0.1,
        le=1.0,
        validate_default=True,
    )
    clean_file_forcibly: bool = _option(
        True, "whether files may be deleted before their time because the disk is too full", live=True
    )
    delete_files_batch: int = _option(
        10, "most files of the log that are deleted in one round", live=True, ge=1, le=10_000
    )
    delete_files_interval: Duration = _option(
        0.1, "pause after a deleted file of the log, or after a queue that lost files", live=True, ge=0.0, le=60.0
    )  # fmt: skip
    clean_interval: Duration = _option(
        10.0, "time between two looks for files to delete and at the use of the disk", live=True, ge=0.1, le=3600.0
    )  # fmt: skip
    clean_delay: Duration = _option(
        60.0, "time from the start to the first of these looks", ge=0.0, le=86400.0
    )
    destroy_forcibly_interval: Duration = _option(
        120.0, "how long readers of a file that is to be deleted are waited for", live=True, ge=0.0, le=86400.0
    )  # fmt: skip
    redelete_hanged_interval: Duration = _option(
        120.0, "time between two attempts to delete a file that somebody was reading", live=True, ge=0.1, le=86400.0
    )  # fmt: skip

    @field_validator("read_only_commit_log_dirs")
    @classmethod
    def _leaves_a_directory(cls, value: tuple[Path, ...], info: ValidationInfo) -> tuple[Path, ...]:
        named = info.data.get("commit_log_dirs")
        if named and not set(named) - set(value):
            raise ValueError("it names all of store.commit_log_dirs, and new files must go somewhere")
        return value

    @field_validator("transient_store_pool")
    @classmethod
    def _fits_into_memory(cls, value: bool, info: ValidationInfo) -> bool:
        size = info.data.get("transient_store_pool_size", 0) * info.data.get("commit_log_file_size", 0)
        memory = physical_memory_bytes()
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


class TopicsConfig(_Section):
    """How topics come into being."""

    auto_create: bool = _option(True, "create a topic when a message is first sent to it", live=True)
    auto_create_max: int = _option(
        10_000, "topics from which on none is created that way", live=True, ge=0, le=1_000_000
    )
    default_queues: int = _option(4, "queues of a topic created that way", live=True, ge=1, le=1024)


class LimitsConfig(_Section):
    """What one client, and all of them together, may ask for."""

    frame_size: Size = _option(
        16 * _MIB, "the largest frame, its length field included", ge=65536, le=256 * _MIB
    )
    header_size: Size = _option(65536, "the largest header of a frame", ge=1024, le=16 * _MIB)
    body_size: Size = _option(
        256 << 10,
        "the largest body of a request that brings no messages, such as a heartbeat",
        live=True,
        ge=4096,
        le=16 * _MIB,
    )
    connections: int = _option(10_000, "connections open at once", live=True, ge=1, le=1_000_000)
    connection_buffer: Size = _option(
        16 * _MIB, "unsent answers of one connection; its requests wait beyond that", live=True, ge=65536
    )
    buffer_total: Size = _option(
        48 * _MIB,
        "unsent answers, unfinished and unanswered requests of all connections; beyond it the greediest is closed",
        live=True,
        ge=_MIB,
    )
    idle_timeout: Duration = _option(
        120.0, "a connection silent for so long is closed", live=True, ge=1.0, le=86400.0
    )
    slow_sender_timeout: Duration = _option(
        30.0,
        "a connection that sends an unfinished frame slower than 16 KiB a second for so long is closed",
        live=True,
        ge=0.1,
        le=3600.0,
    )
    slow_reader_timeout: Duration = _option(
        30.0,
        "a connection that takes its answers slower than 16 KiB a second for so long is closed",
        live=True,
        ge=0.1,
        le=3600.0,
    )
    pull_bytes: Size = _option(
        4 * _MIB, "bytes of messages in one pull's answer", live=True, ge=1024, le=15 * _MIB
    )
    pull_messages: int = _option(4096, "messages in one pull's answer", live=True, ge=1, le=1_000_000)

    @field_validator("header_size", "pull_bytes")
    @classmethod
    def _below_frame_size(cls, value: int, info: ValidationInfo) -> int:
        frame_size = info.data.get("frame_size")
        if frame_size is not None and value >= frame_size:
            raise ValueError(
                f"{value} bytes do not fit into a frame; keep it below limits.frame_size ({frame_size})"
            )
        return value


class LogConfig(_Section):
    """What the broker writes to stderr."""

    format: Literal["auto", "text", "json"] = _option(
        "auto", "auto: text on a terminal, otherwise JSON lines"
    )
    level: Literal["debug", "info", "warning", "error"] = _option(
        "info", "the least level written", live=True
    )


class MetricsConfig(_Section):
    """The metrics page."""

    max_series: int = _option(
        20_000,
        "series of groups, topics and queues on the page; beyond that, series per queue are left out first",
        live=True,
        ge=100,
        le=1_000_000,
    )
    refresh_interval: Duration = _option(
        15.0, "time between two looks at the disk (sizes, free space)", live=True, ge=1.0, le=3600.0
    )


class OffsetsConfig(_Section):
    """Consumer groups' progress."""

    flush_interval: Duration = _option(
        5.0, "time between two writes of consumerOffset.json; commits in between are in its journal", live=True,
        ge=0.1, le=3600.0,
    )  # fmt: skip
    journal_size_max: Size = _option(
        8 * _MIB,
        "a journal grown to this size has the file written early",
        live=True,
        ge=4096,
        le=1024 * _MIB,
    )


class LongPollingConfig(_Section):
    """Pulls that wait for messages."""

    max_wait: Duration = _option(
        25.0, "the longest time a pull is parked, whatever it asks for", live=True, ge=0.1, le=600.0
    )
    client_memory_max: Size = _option(
        8 * _MIB,
        "memory for the held pulls of one client: some 2 KiB for each, and its filter",
        live=True,
        ge=65536,
        le=1 << 36,
    )
    memory_max: Size = _option(
        384 * _MIB, "the same for all clients together", live=True, ge=65536, le=1 << 36
    )


class BrokerConfig(_Section):
    """The whole configuration; constructing it raises ConfigError with every mistake at once."""

    data_dir: DataPath = _option(Path("reput-data"), "the store directory; one broker at a time uses it")
    allow_insecure: bool = _option(
        False,
        "permit listening beyond loopback without authentication; anyone who can connect may do anything",
    )
    host: str = _option("127.0.0.1", "address that the broker's ports listen on")
    port: Port = _option(DEFAULT_PORT, "port for clients; 0 picks a free one")
    name_port: PortChoice = _option(
        "auto", "the same under the name server's port; auto: 9876 beside port 10911, otherwise off"
    )
    http_host: str = _option("127.0.0.1", "address that metrics, health and status are served on")
    http_port: PortChoice = _option(
        "auto",
        "port of metrics, health and status; auto: 10913 beside port 10911, otherwise a free one "
        "(embedded: off)",
    )
    http_allowed_hosts: Annotated[tuple[str, ...], BeforeValidator(_to_host_names)] = _option(
        (),
        "further names that browsers may give in Host; addresses, names without a dot and advertise always pass",
    )
    advertise: Annotated[str | None, BeforeValidator(_empty_to_none)] = _option(
        None, 'host:port that routes name; "" names the address that the asking client dialled'
    )
    cluster: str = _option("DefaultCluster", "name of the cluster in routes")
    broker_name: str = _option("broker-a", "name of this broker in routes")
    shutdown_grace: Duration = _option(
        20.0, "time that running requests get at shutdown", live=True, ge=0.0, le=3600.0
    )
    # Each configuration has sections of its own, for a reload sets their live options.
    store: StoreConfig = Field(default_factory=StoreConfig)
    topics: TopicsConfig = Field(default_factory=TopicsConfig)
    limits: LimitsConfig = Field(default_factory=LimitsConfig)
    log: LogConfig = Field(default_factory=LogConfig)
    metrics: MetricsConfig = Field(default_factory=MetricsConfig)
    offsets: OffsetsConfig = Field(default_factory=OffsetsConfig)
    dedup: DedupConfig = Field(default_factory=DedupConfig)
    groups: GroupsConfig = Field(default_factory=GroupsConfig)
    filters: FiltersConfig = Field(default_factory=FiltersConfig)
    sink: SinkConfig = Field(default_factory=SinkConfig)
    long_polling: LongPollingConfig = Field(default_factory=LongPollingConfig)
    delay: DelayConfig = Field(default_factory=DelayConfig)
    transactions: TransactionsConfig = Field(default_factory=TransactionsConfig)
    replies: RepliesConfig = Field(default_factory=RepliesConfig)

    _origins: dict[str, str] = PrivateAttr(default_factory=dict)
    _path: Path | None = PrivateAttr(default=None)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(problems_of(error, {}, option_fields(type(self)))) from None
        problems = contradictions(self)
        if problems:
            raise ConfigError(problems)
        self._origins.update(dict.fromkeys(flatten(values), "code"))

    @field_validator("host", "http_host")
    @classmethod
    def _loopback_or_permitted(cls, value: str, info: ValidationInfo) -> str:
        if not value:
            raise ValueError('an address is needed; "127.0.0.1" listens on loopback only')
        if not is_loopback(value) and info.data.get("allow_insecure") is False:
            raise ValueError(
                f"{value} can be reached from other machines and there is no authentication; "
                "set allow_insecure = true if the network is trusted, or use 127.0.0.1"
            )
        return value

    @field_validator("advertise")
    @classmethod
    def _host_and_port(cls, value: str | None) -> str | None:
        if value is None:
            return None
        host, separator, port = value.rpartition(":")
        if (
            not separator
            or not host
            or not port.isascii()
            or not port.isdigit()
            or not 1 <= int(port) <= 65535
        ):
            raise ValueError(f'"host:port" is needed, such as "broker.example:10911", not {value!r}')
        if host in ("0.0.0.0", "[::]", "::"):
            raise ValueError(f"clients cannot dial {host}; name an address at which they reach the broker")
        return value

    @field_validator("cluster", "broker_name")
    @classmethod
    def _legal_name(cls, value: str) -> str:
        # Both become topics of their own (RocketMQ: TopicConfigManager), so topic rules hold for them.
        try:
            return check_topic(value)
        except InvalidName as error:
            raise ValueError(str(error).replace("topic name", "name", 1)) from None

    @property
    def origins(self) -> Mapping[str, str]:
        """Where each option that is not at its default was set: a file, a variable, a flag, `code`."""
        return self._origins

    @property
    def path(self) -> Path | None:
        """The file that this configuration was read from, if any."""
        return self._path

    def note_origins(self, origins: Mapping[str, str], path: Path | None) -> None:
        """Remember where the values came from; called once, by whoever gathered them."""
        self._origins.clear()
        self._origins.update(origins)
        self._path = path

    def name_port_to_open(self) -> int | None:
        """Return the port of the second listener (0 = any free one), or None for no such listener."""
        if self.name_port == "auto":
            return DEFAULT_NAME_PORT if self.port == DEFAULT_PORT else None
        return self.name_port if isinstance(self.name_port, int) else None

    def http_port_to_open(self, *, embedded: bool) -> int | None:
        """Return the port of the HTTP listener (0 = any free one), or None for no such listener."""
        if self.http_port == "auto":
            if self.port == DEFAULT_PORT:
                return DEFAULT_HTTP_PORT
            return None if embedded else 0
        return self.http_port if isinstance(self.http_port, int) else None


def is_loopback(host: str) -> bool:
    """Tell whether `host` can only be reached from this machine; a name other than localhost cannot be told."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
