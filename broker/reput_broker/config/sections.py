"""The sections of the configuration, `[access]` to `[tls]`: a row for each option, with its text below it.

`conf/broker.toml` is made from these rows: `make format` writes it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic.config import JsonDict

from reput_broker.config.value_types import Address, BodyForms, Directories, Duration, HoursOfDay, Size, Url, Urls
from reput_broker.store.base.options import memory_limit_bytes
from reput_protocol.wire.signature import Credentials, check_secret, check_user_name

LOCK_TIMEOUT_MIN_S: Final = 40.0
"""Members renew their locks every 20 s and consume for 30 s after the last confirmation, in RocketMQ's clients
(REBALANCE_LOCK_INTERVAL, REBALANCE_LOCK_MAX_LIVE_TIME) and the bundled one. No other member may lock the queue before;
the rest is margin."""

_MIB = 1 << 20
_HOUR = 3600.0
_DAY = 86_400.0


class Section(BaseModel):
    """A table of options: unknown ones and values of other types are errors, and only a reload changes it."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, validate_default=False)


def option(default: Any, *, rocketmq: str = "", live: bool = False, secret: bool = False, **limits: Any) -> Any:
    """Declare an option; the text below it is its comment in `conf/broker.toml` and in the reference.

    Args:
        default: its value where none is set.
        rocketmq: RocketMQ's name of it.
        live: whether a reload changes it while the broker runs.
        secret: whether its value is never shown.
        limits: as pydantic's `Field` takes them.
    """
    extra: JsonDict = {"rocketmq": rocketmq, "live": live, "secret": secret}
    return Field(default, json_schema_extra=extra, repr=not secret, **limits)


class AccessConfig(Section):
    """Who may do what: users, their secrets and rights. docs/security.md explains it."""

    enabled: bool = option(False)
    """Check the signature and the rights of every request. Needed on every address beyond loopback, unless
    allow_insecure."""
    file: str = option("")
    """The file with the users and their rights, which `reput user` and `reput acl` write; "":
    data_dir/access/users.json. Created with mode 0600; rejected if its group may write it or others may read it. The
    broker notices changes in seconds."""
    admin_user: str = option("admin")
    """Name of the administrator with admin_secret."""
    admin_secret: str = option("", secret=True)
    """Secret of an administrator besides the users of the file; "": there is none. 16 or more characters, for instance
    from `openssl rand -hex 32`. Better than here: in a file that REPUT_ACCESS__ADMIN_SECRET_FILE names."""
    generate_admin: bool = option(False)
    """Without any user at a start, make admin_user with a new secret, and write that to admin.secret next to the users'
    file. The container image sets it."""
    broker_user: str = option("")
    """User that signs this broker's requests to its master and to name servers; "": admin_user. It needs the right
    replicate on the cluster."""
    broker_secret: str = option("", secret=True)
    """Secret of broker_user; better in a file that REPUT_ACCESS__BROKER_SECRET_FILE names."""
    accept_rocketmq_signatures: bool = option(True)
    """Accept signatures in RocketMQ's form too. They cover less than those in Reput's form, which the clients and
    commands of Reput use: docs/security.md says what. RocketMQ's clients and mqadmin need true."""
    send_rocketmq_signatures: bool = option(True)
    """Sign this broker's requests in RocketMQ's form to brokers and name servers that do not support Reput's. false:
    the broker does not use such servers."""
    signature_tolerance: Duration = option(300.0, ge=1.0, le=86_400.0)
    """How old a request may be that is signed in Reput's form."""
    first_signature_timeout: Duration = option(10.0, ge=0.1, le=600.0)
    """With access control, how long a connection may be open before its first valid signature."""

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
            (self.broker_user, self.broker_secret) if self.broker_user else (self.admin_user, self.admin_secret)
        )
        if not secret:
            return None
        return Credentials(user, secret, rocketmq_signatures=self.send_rocketmq_signatures)


class StoreConfig(Section):
    """How messages are kept."""

    flush: Literal["sync", "async"] = option("sync", rocketmq="flushDiskType")
    """Sync: consumers see only what is on disk, and a send waits for that unless it requests less; async: the log is
    synced at intervals, see flush_interval. sync, because a power cut should not lose an acknowledged message;
    many sends share one sync."""
    flush_interval: Duration = option(0.5, rocketmq="flushIntervalCommitLog", live=True, ge=0.001, le=600.0)
    """With flush = async, how often the broker checks whether to sync the log. A send that waits for its sync does not
    wait for this."""
    flush_least_pages: int = option(0, rocketmq="flushCommitLogLeastPages", live=True, ge=0, le=1 << 18)
    """With flush = async, unsynced pages of 4 KiB from which such a check syncs the log; 0: any byte. 4 in
    RocketMQ; 0 limits what a power cut can take to one flush_interval."""
    flush_thorough_interval: Duration = option(
        10.0, rocketmq="flushCommitLogThoroughInterval", live=True, ge=0.001, le=600.0
    )
    """With flush = async, time after which the log is synced in any case."""
    sync_timeout: Duration = option(5.0, rocketmq="syncFlushTimeout", live=True, ge=0.01, le=600.0)
    """How long a send waits for its sync before the response FLUSH_TIMEOUT. A healthy disk syncs in milliseconds;
    5 s is a disk in trouble."""
    commit_log_file_size: Size = option(1024 * _MIB, rocketmq="mappedFileSizeCommitLog", ge=4096, le=1 << 31)
    """Size of one file of the log, allocated in full; fixed once a store exists. RocketMQ's size. Small files (16MiB)
    suit tests and laptops."""
    commit_log_dirs: Directories = option(())
    """Directories of the log, if not data_dir/commitlog; a list, or "/disk1/log,/disk2/log". RocketMQ's
    storePathCommitLog. File number k goes to the k mod n-th of the n that have room, in the order of their names. Their
    disks must be mounted at every start, because missing directories are created; none may belong to another store."""
    read_only_commit_log_dirs: Directories = option((), rocketmq="readOnlyCommitLogStorePaths", validate_default=True)
    """Directories of the log in which no new files are created. To empty a disk, name its directory here until its last
    message has expired."""
    warm_mapped_file: bool = option(False, rocketmq="warmMapedFileEnable")
    """Load the pages of a log file, and lock them into memory, before the file is used. Puts then do not wait for page
    faults; it takes two to three commit_log_file_size of memory, and `ulimit -l` must permit it."""
    read_ahead: bool = option(True, rocketmq="dataReadAheadEnable", live=True)
    """Whether the operating system reads ahead in the log where a consumer reads old messages from the disk. Off, it
    reads what is asked for only: for consumers that are far behind and read little of what is next to it, by a filter
    or from many queues."""
    transient_store_pool_size: int = option(5, rocketmq="transientStorePoolSize", ge=1, le=1024)
    """With transient_store_pool, the number of buffers of commit_log_file_size. RocketMQ's number: one is filled while
    others wait for the disk."""
    transient_store_pool: bool = option(False, rocketmq="transientStorePoolEnable")
    """Append to buffers in memory, which a worker thread commits to the files of the log. Puts are not delayed by a
    page cache that is busy writing. Off, because it takes transient_store_pool_size x commit_log_file_size of memory,
    and every acknowledgement waits for its commit."""
    fast_fail_if_no_buffer: bool = option(False, rocketmq="fastFailIfNoBufferInStorePool")
    """With transient_store_pool, reject sends while no buffer is free; otherwise they go into the file itself. The
    error is BUSY, and RocketMQ's clients then try another broker."""
    os_page_cache_busy_timeout: Duration = option(
        1.0, rocketmq="osPageCacheBusyTimeOutMills", live=True, ge=0.01, le=3600.0
    )
    """How long a send may wait for a file of the log before others are rejected; a waiting one is stored. The error
    is BUSY, and RocketMQ's clients then try another broker."""
    commit_interval: Duration = option(0.2, rocketmq="commitIntervalCommitLog", live=True, ge=0.001, le=600.0)
    """With transient_store_pool, how often the broker checks whether to commit the log. A send that waits for its
    commit does not wait for this; oneway sends do."""
    commit_least_pages: int = option(4, rocketmq="commitCommitLogLeastPages", live=True, ge=0, le=1 << 18)
    """With transient_store_pool, uncommitted pages of 4 KiB from which such a check commits; 0: any byte."""
    commit_thorough_interval: Duration = option(
        0.2, rocketmq="commitCommitLogThoroughInterval", live=True, ge=0.001, le=600.0
    )
    """With transient_store_pool, time after which the log is committed in any case. A kill can take oneway messages of
    this time."""
    consume_queue_entries: int = option(300_000, rocketmq="mappedFileSizeConsumeQueue", ge=1, le=100_000_000)
    """Entries of 20 bytes in one file of a queue; fixed once a store exists. RocketMQ's number: 6,000,000 bytes a file,
    sparse until written."""
    index: bool = option(True, rocketmq="messageIndexEnable")
    """Keep an index of message keys and unique ids, by which `reput message find` and RocketMQ's consoles find
    messages. Without it an existing index is left as it is."""
    index_slots: int = option(5_000_000, rocketmq="maxHashSlotNum", ge=1, le=500_000_000)
    """Hash slots in one file of the key index; fixed once a store exists. RocketMQ's number, so that its tools read the
    files."""
    index_entries: int = option(20_000_000, rocketmq="maxIndexNum", ge=2, le=500_000_000)
    """Entries in one file of the key index; fixed once a store exists. RocketMQ's number: four keys a slot."""
    message_size_max: Size = option(4 * _MIB, rocketmq="maxMessageSize", ge=1, le=8 * _MIB)
    """The largest body of a message. RocketMQ's limit; larger payloads belong into an object store. A message must also
    fit into one file of the log."""
    record_crc: bool = option(False, rocketmq="enabledAppendPropCRC")
    """Write a checksum of the whole record, not only of the body, into records that the broker encodes itself. Body
    checksums are always written; this covers headers and properties too, for 20 bytes a message and some speed. It
    applies to messages of RocketMQ's clients; records of PutMessage have it if the producer left room for it, which
    Reput's producer does not."""
    consume_queue_ext: bool = option(False, rocketmq="enableConsumeQueueExt")
    """Keep extended entries for the queues (consumequeue_ext), as RocketMQ does; cannot be turned off for a store that
    has some. Off, as in RocketMQ: it costs 20 bytes per message and a second write, and only a RocketMQ that filters by
    bit maps needs it. Without it the broker does not open a store that has them."""
    consume_queue_ext_file_size: Size = option(
        48 * _MIB, rocketmq="mappedFileSizeConsumeQueueExt", ge=32_771, le=(1 << 31) - 1
    )
    """Size of one file of extended entries; fixed once a store has some. Sparse until written."""
    consume_queue_flush_interval: Duration = option(
        1.0, rocketmq="flushIntervalConsumeQueue", live=True, ge=0.01, le=600.0
    )
    """How often the broker checks which queues to sync. Queues can be rebuilt from the log; a long interval only makes
    recovery longer."""
    consume_queue_flush_least_pages: int = option(
        0, rocketmq="flushConsumeQueueLeastPages", live=True, ge=0, le=1 << 18
    )
    """Unsynced pages of 4 KiB from which such a check syncs a queue; 0: any entry. 2 in
    RocketMQ: a page has 204 entries, and with thousands of quiet queues a sync for each may
    be too much. 0 keeps recovery short."""
    consume_queue_flush_thorough_interval: Duration = option(
        60.0, rocketmq="flushConsumeQueueThoroughInterval", live=True, ge=0.01, le=3600.0
    )
    """Time after which every queue is synced and the checkpoint written in any case. A recovery reads at most about
    this much of the log again."""
    checkpoint_interval: Duration = option(1.0, live=True, ge=0.01, le=600.0)
    """Time between two writes of the checkpoint. Recovery reads the log from the checkpoint on; a second keeps that
    short."""
    file_reserved_time: Duration = option(72 * _HOUR, rocketmq="fileReservedTime", live=True, ge=1.0)
    """How long a file of the log is kept after its last change. RocketMQ's value; consumers that are further behind
    lose messages, and the disk must hold what is written in this time."""
    delete_when: HoursOfDay = option("04", rocketmq="deleteWhen", live=True)
    """Local hours in which files past their time are deleted, such as "04" or "04;16". RocketMQ's value, an hour when
    little else happens; deleting large files costs disk time."""
    disk_max_used_ratio: float = option(0.75, rocketmq="diskMaxUsedSpaceRatio", live=True, ge=0.1, le=1.0)
    """Above this disk usage, files past their time are deleted at any hour. RocketMQ's value. All usage of the file
    system counts; blocks reserved for root count as neither used nor free."""
    disk_clean_forcibly_ratio: float = option(
        0.85, rocketmq="diskSpaceCleanForciblyRatio", live=True, ge=0.1, le=1.0, validate_default=True
    )
    """Above this disk usage the oldest files are deleted whatever their age; 1.0: never. RocketMQ's value: old messages
    are given up so that new ones can be stored."""
    disk_warning_ratio: float = option(
        0.9, rocketmq="diskSpaceWarningLevelRatio", live=True, ge=0.1, le=1.0, validate_default=True
    )
    """Above this disk usage messages are rejected, until it is down to disk_clean_forcibly_ratio; 1.0: never.
    RocketMQ's value. Pulls continue; a full disk would stop more than the broker."""
    clean_file_forcibly: bool = option(True, rocketmq="cleanFileForciblyEnable", live=True)
    """Whether files may be deleted before their time because the disk is too full. On, as in RocketMQ; off if new
    messages should rather be rejected."""
    delete_files_batch: int = option(10, rocketmq="deleteFileBatchMax", live=True, ge=1, le=10_000)
    """Log files deleted in one round, at most. RocketMQ's number; the next round comes after clean_interval."""
    delete_files_interval: Duration = option(0.1, rocketmq="deleteCommitLogFilesInterval", live=True, ge=0.0, le=60.0)
    """Pause after a deleted log file, or after a queue that lost files. RocketMQ's value; it leaves the disk to other
    work in between."""
    clean_interval: Duration = option(10.0, rocketmq="cleanResourceInterval", live=True, ge=0.1, le=3600.0)
    """How often the broker checks for files to delete and the disk usage. RocketMQ's value; a rejection for lack of
    space ends at most this late."""
    clean_delay: Duration = option(60.0, ge=0.0, le=86400.0)
    """Time from the start to the first of these checks. RocketMQ's value; time to notice a wrong clock or configuration
    before anything is deleted."""
    destroy_forcibly_interval: Duration = option(
        120.0, rocketmq="destroyMapedFileIntervalForcibly", live=True, ge=0.0, le=86400.0
    )
    """How long the broker waits for readers of a file that is to be deleted. RocketMQ's value. Then the file's name is
    removed; its bytes stay for those readers."""
    redelete_hanged_interval: Duration = option(
        120.0, rocketmq="redeleteHangedFileInterval", live=True, ge=0.1, le=86400.0
    )
    """Time between two attempts to delete a file that was in use. RocketMQ's value; a round of deletion tries it as
    well."""

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
                f"{value} is below store.{before} ({least}); files must be deleted before sends are rejected"
            )
        return value


class HAConfig(Section):
    """Replication: a master sends its log to slaves."""

    role: Literal["ASYNC_MASTER", "SYNC_MASTER", "SLAVE"] = option("ASYNC_MASTER", rocketmq="brokerRole")
    """ASYNC_MASTER: sends that name no ack level do not wait for slaves; SYNC_MASTER: they wait for in_sync_replicas
    copies; SLAVE: copies its master's log and takes no messages."""
    master: Address = option("")
    """Of a slave: host:port of its master for clients; "" learns it from the name servers."""
    master_ha_address: Address = option("", rocketmq="haMasterAddress")
    """Of a slave: host:port of its master's ha_port; "" learns it from the name servers, else it is the port after that
    of master."""
    in_sync_replicas: int = option(1, rocketmq="inSyncReplicas", live=True, ge=1, le=64)
    """Copies, the master's included, that a send with ack = replicated waits for. ack = replicated needs a slave even
    with 1; a SYNC_MASTER with 1 waits for none unless requested, as in RocketMQ."""
    max_gap_not_in_sync: Size = option(256 * _MIB, rocketmq="haMaxGapNotInSync", live=True, ge=4096, le=1 << 50)
    """A slave that is further behind is not in sync. A send that needs it is rejected at once instead of waiting."""
    slave_timeout: Duration = option(3.0, rocketmq="slaveTimeout", live=True, ge=0.01, le=600.0)
    """How long a send waits for its copies before the response FLUSH_SLAVE_TIMEOUT. The message is stored on the
    master nevertheless, and the response contains its receipt."""
    send_heartbeat_interval: Duration = option(5.0, rocketmq="haSendHeartbeatInterval", live=True, ge=0.01, le=600.0)
    """Silence after which master and slave send each other a heartbeat."""
    housekeeping_interval: Duration = option(20.0, rocketmq="haHousekeepingInterval", live=True, ge=0.02, le=3600.0)
    """Silence after which master and slave close their connection; the slave connects again. Several
    heartbeats."""
    transfer_batch_size: Size = option(256 << 10, rocketmq="haTransferBatchSize", live=True, ge=1024, le=16 * _MIB)
    """Maximal bytes of the log in one frame to a slave; 32 KiB in RocketMQ."""
    slave_read_enabled: bool = option(False, rocketmq="slaveReadEnable", live=True)
    """Serve pulls as a slave; as a master, send consumers that are more than 40 % of the memory behind to a slave. Off,
    the master serves every pull, because it has the newest messages."""
    mutual_proof: bool = option(True)
    """With access control: a slave and its master prove to each other that they know the secret of the slave's user
    (access.broker_user). false accepts brokers of earlier versions, which prove the slave only, and masters without
    access control or of RocketMQ: set it on all replicas while you upgrade them, or while you turn access control
    on."""

    @property
    def copies_if_replicated(self) -> int:
        """Copies that a send with ack = replicated waits for: one on another machine, even if others need none."""
        return max(2, self.in_sync_replicas)


class ElectionConfig(Section):
    """Failover: etcd or Kubernetes elects the master of the brokers with one broker_name. See
    docs/cluster.md."""

    etcd: Urls = option(())
    """URLs of an etcd that elects, any of its members; none and no kubernetes_namespace: no election. Several, so that
    one may be down. Example: ["http://etcd1:2379", "http://etcd2:2379", "http://etcd3:2379"]."""
    etcd_user: str = option("")
    """User of etcd's authentication; "" without it. It needs to read and write the keys under /reput/."""
    etcd_password_file: str = option("")
    """File with the password of that user. A file, so that the password is in no configuration that is shown."""
    etcd_ca: str = option("")
    """With https: file with the certificates that sign etcd's; "" uses those that the machine trusts."""
    etcd_cert: str = option("")
    """With https: file with the certificate that this broker shows to etcd; "" for none."""
    etcd_key: str = option("")
    """File with the key of that certificate."""
    kubernetes_namespace: str = option("")
    """Elect by a Lease in this namespace of the Kubernetes that the broker's pod runs in. Its service account needs
    get, watch, create and update on leases of coordination.k8s.io. "" for no election by Kubernetes."""
    lease: Duration = option(10.0, ge=3.0, le=600.0)
    """Time after which a master that has not renewed its lease is replaced, in whole seconds; the master stops
    acknowledging a tenth before. Shorter is a faster failover, and more of them when machines or networks stall."""
    first_master: int = option(0, ge=0)
    """Broker_id of the replica that becomes master while the engine has no record of its group. Name the broker that
    has messages, if one has; all replicas need the same value here."""
    in_sync_timeout: Duration = option(10.0, ge=1.0, le=600.0)
    """A replica leaves the in-sync set if it reports nothing, or is not caught up, for so long. Until then, messages
    with ack = replicated and consumers wait for it."""

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

    auto_create: bool = option(True, rocketmq="autoCreateTopicEnable", live=True)
    """Create a topic when a message is first sent to it. On, as in RocketMQ; off if topics are created by a deployment
    and a typing mistake should not create one."""
    auto_create_max: int = option(10_000, live=True, ge=0, le=1_000_000)
    """Number of topics from which on none is created that way. Clients with ever new names cannot fill memory and disk;
    administrators are not limited by it."""
    default_queues: int = option(4, rocketmq="defaultTopicQueueNums", live=True, ge=1, le=1024)
    """Queues of a topic created that way. RocketMQ's number; it bounds how many members of a group can share a
    topic."""


class LimitsConfig(Section):
    """What one client, and all of them together, may request. Everything is checked before memory is allocated for
    it."""

    frame_size: Size = option(16 * _MIB, ge=65536, le=256 * _MIB)
    """The largest frame, its length field included. RocketMQ's limit. At least 64 KiB above store.message_size_max;
    clients that send blocks of messages (at most 8 MiB) need room for those too."""
    header_size: Size = option(_MIB, ge=1024, le=16 * _MIB)
    """The largest header of a frame. Most take a few hundred bytes; those of RocketMQ's requests 10 and 310 have the
    properties of a message, at most 31 KiB, which JSON writes in up to six times as many bytes."""
    body_size: Size = option(256 << 10, live=True, ge=4096, le=16 * _MIB)
    """The largest body of a request that brings no messages, such as a heartbeat. Such a body is parsed in one piece
    while all other clients wait: some milliseconds at this size."""
    connections: int = option(10_000, live=True, ge=1, le=1_000_000)
    """Open connections. A connection costs a file descriptor and some 20 KiB; raise the descriptor limit with it."""
    connection_buffer: Size = option(16 * _MIB, live=True, ge=65536)
    """Unsent responses of one connection; beyond that its requests wait. Room for several of the largest ones, so that
    one reader cannot take all the memory."""
    buffer_total: Size = option(48 * _MIB, live=True, ge=_MIB)
    """Unsent responses, and unfinished requests, of all connections; beyond it the connection that holds most
    is closed. A connection is served without waiting up to an eighth of what is free. With the 60 MiB that the broker
    takes for itself, this is the private memory that it needs."""
    idle_timeout: Duration = option(120.0, rocketmq="serverChannelMaxIdleTimeSeconds", live=True, ge=1.0, le=86400.0)
    """A connection silent for this time is closed. RocketMQ's value; its clients send a heartbeat every 30 s."""
    slow_sender_timeout: Duration = option(30.0, live=True, ge=0.1, le=3600.0)
    """A connection that sends an unfinished frame slower than 16 KiB/s for this time is closed. A stalled sender
    holds memory."""
    slow_reader_timeout: Duration = option(30.0, live=True, ge=0.1, le=3600.0)
    """A connection that reads its responses slower than 16 KiB/s for this time is closed. A stalled reader holds
    memory."""
    pull_bytes: Size = option(4 * _MIB, rocketmq="maxTransferBytesOnMessageInMemory", live=True, ge=1024, le=15 * _MIB)
    """Bytes of messages in one pull's response. Large enough for blocks, small enough that one pull does not delay
    others."""
    pull_messages: int = option(4096, rocketmq="maxTransferCountOnMessageInMemory", live=True, ge=1, le=1_000_000)
    """Messages in one pull's response. With small messages this, not pull_bytes, limits a response."""

    @field_validator("header_size", "pull_bytes")
    @classmethod
    def _below_frame_size(cls, value: int, info: ValidationInfo) -> int:
        frame_size = info.data.get("frame_size")
        if frame_size is not None and value >= frame_size:
            raise ValueError(f"{value} bytes do not fit into a frame; keep it below limits.frame_size ({frame_size})")
        return value


class LogConfig(Section):
    """What is written to stderr."""

    format: Literal["auto", "text", "json"] = option("auto")
    """Auto: text on a terminal, otherwise JSON lines. A person reads text, a log collector reads JSON."""
    level: Literal["debug", "info", "warning", "error"] = option("info", live=True)
    """The least level written. A busy healthy broker writes nothing per message at info."""


class MetricsConfig(Section):
    """The page /metrics."""

    max_series: int = option(20_000, live=True, ge=100, le=1_000_000)
    """Series of groups, topics and queues on the page; beyond that, series per queue are left out first. It bounds the
    page, and what Prometheus stores of it."""
    refresh_interval: Duration = option(15.0, live=True, ge=1.0, le=3600.0)
    """Time between two checks of the disk (sizes, free space). A scrape does not touch the disk."""


class TracingConfig(Section):
    """Spans of sends and deliveries, for OpenTelemetry; see docs/tracing.md."""

    endpoint: Url = option("")
    """Where they are exported: the URL of a receiver of OTLP over HTTP, such as http://collector:4318/v1/traces. Empty,
    there are none. It needs the extra otel: pip install opentelemetry-exporter-otlp-proto-http."""
    sample_ratio: float = option(0.0, live=True, ge=0.0, le=1.0)
    """Share of the sends and deliveries without a trace context that begin a trace, 0 to 1. Messages of producers that
    trace have a context in their properties, and follow what their producer has decided."""


class OffsetsConfig(Section):
    """Consumer groups' progress."""

    flush_interval: Duration = option(5.0, live=True, ge=0.1, le=3600.0)
    """Time between two writes of consumerOffset.json; commits in between are in its journal. RocketMQ's value."""
    journal_size_max: Size = option(8 * _MIB, live=True, ge=4096, le=1024 * _MIB)
    """A journal of this size has the file written early. Some 100,000 commits; reading them at the start takes well
    under a second."""


class LongPollingConfig(Section):
    """Pulls that wait for messages."""

    max_wait: Duration = option(25.0, live=True, ge=0.1, le=600.0)
    """The longest time that a pull waits, whatever it requests. Below what proxies and firewalls forget; RocketMQ's
    clients request 15 s. A connection with a waiting pull is not silent (limits.idle_timeout)."""
    client_memory_max: Size = option(8 * _MIB, live=True, ge=65536, le=1 << 36)
    """Memory for the waiting pulls of one client: some 2 KiB for each, and its filter. Room for 4,000; a pull beyond
    that is rejected as BUSY if it finds nothing, and clients pull again after a second or more."""
    memory_max: Size = option(384 * _MIB, live=True, ge=65536, le=1 << 36)
    """The same for all clients together. Room for 10,000 clients with 16 queues each; it is taken only while so many
    pulls wait. When it is full, only clients with more than an equal share are rejected."""


class DedupConfig(Section):
    """Repeated sends of producers that request deduplication."""

    window: Duration = option(600.0, live=True, ge=1.0, le=30 * 86400.0)
    """How long a stored message's unique id is recognised. Longer costs no memory, because the index on disk is
    asked."""


class GroupsConfig(Section):
    """Consumer groups: members and queue locks."""

    auto_create: bool = option(True, rocketmq="autoCreateSubscriptionGroup", live=True)
    """Create a group with its first heartbeat or pull. RocketMQ's default; without it an administrator creates groups
    first."""
    auto_create_max: int = option(10_000, live=True, ge=0, le=1_000_000)
    """Number of groups from which on none is created that way. Clients with ever new names cannot fill the memory;
    administrators are not limited by it."""
    groups_max: int = option(10_000, live=True, ge=1, le=1_000_000)
    """All groups, whichever request creates them, at most. A group takes a KiB of memory, and all are written whenever
    one changes."""
    heartbeat_timeout: Duration = option(120.0, rocketmq="channelExpiredTimeout", live=True, ge=1.0, le=86400.0)
    """A member without a heartbeat for this time is removed, and its queues go to others. RocketMQ's value; its clients
    send a heartbeat every 30 s. A connection that ends is noticed immediately."""
    notify_interval: Duration = option(0.1, live=True, ge=0.0, le=10.0)
    """Shortest time between two notifications of one group's members. The first change is notified immediately; members
    that start together cause one notification."""
    client_memory_max: Size = option(512 << 10, live=True, ge=8192, le=1 << 30)
    """Memory for the groups and subscriptions of one client: some 512 bytes for each, and their texts. Room for a
    thousand; a heartbeat with more is rejected."""
    memory_max: Size = option(64 << 20, live=True, ge=64 << 10, le=1 << 36)
    """The same for all clients together. Room for some 30,000 clients with one group and topic each; a heartbeat that
    adds more is rejected as BUSY, and memberships do not change."""
    lock_timeout: Duration = option(60.0, live=True, ge=LOCK_TIMEOUT_MIN_S, le=86400.0)
    """A queue's lock that its member has not renewed for this time is free. RocketMQ's value; its clients and Reput's
    renew every 20 s and stop consuming after 30 s without a response: 40 s is the least."""
    locks_max: int = option(100_000, live=True, ge=1, le=10_000_000)
    """Locks that all groups together hold, at most. A lock takes some 200 bytes until it expires; a member that
    requests more gets a response without them."""
    free_locks_on_unregister: bool = option(True, live=True)
    """Free the locks of a member that leaves, instead of letting them expire. Members leave when they have ended their
    work; one that dies keeps its locks until they expire."""
    refuse_subscription_conflicts: bool = option(False, live=True)
    """Keep members out of a group whose other members subscribe to something else. Otherwise the conflict is only
    logged and counted, as with RocketMQ, and messages are lost to one side. With it, stop all members of a group before
    you change its subscription."""
    reset_tells_members: bool = option(True, rocketmq="useServerSideResetOffset", live=True)
    """When a group's offsets are reset, notify its members before they pull again. They drop prefetched messages at
    once; without it each learns of the reset from the response to its next pull."""
    lag_refresh_interval: Duration = option(15.0, live=True, ge=1.0, le=3600.0)
    """How often the age of unconsumed messages and the state of each group are computed. It reads one message of each
    queue with lag; a scrape reads none."""
    stuck_after: Duration = option(60.0, live=True, ge=1.0, le=30 * 86400.0)
    """A group is `stuck` if it has members and its offset in a queue with messages has not changed for so long. Longer
    than the handling of a message takes."""
    behind_messages: int = option(10_000, live=True, ge=0, le=1 << 40)
    """A group is `behind` if more messages of a topic wait for it. More than wait for a fast group at any moment."""
    behind_age: Duration = option(600.0, live=True, ge=1.0, le=365 * 86400.0)
    """A group is `behind` too if a message has waited for it for longer."""


class FiltersConfig(Section):
    """Filters of consumers."""

    sql: bool = option(True, rocketmq="enablePropertyFilter", live=True)
    """Serve SQL92 expressions over the properties of messages, not only tags. RocketMQ's brokers do not by default.
    Such a filter reads every message that it skips; tags do not."""
    sql_characters_max: int = option(4 << 20, live=True, ge=8192, le=1 << 30)
    """Characters of all different SQL92 expressions in use at once; some 15 bytes of memory for each. More is rejected
    as BUSY, so that clients with ever new expressions cannot fill the memory."""


class SinkConfig(Section):
    """Sinks that publish whole batches exactly once, such as Spark's; records are staged outside the log first."""

    staging_timeout: Duration = option(86_400.0, live=True, ge=1.0, le=365 * 86_400.0)
    """How long staged data of an inactive query is kept. Longer than any batch takes, and than a query is ever down
    between staging a batch and committing it."""
    staging_size_max: Size = option(16 << 30, live=True, ge=1 << 20, le=1 << 50)
    """Bytes staged at a time, of all queries, at most. They are in the data directory."""
    batch_ids_kept: Duration = option(90 * 86_400.0, live=True, ge=3600.0, le=3650 * 86_400.0)
    """How long the last batch of an inactive query is remembered. A query that is down for longer may publish its last
    batch once more."""


class DelayConfig(Section):
    """Delayed messages."""

    timer_wheel: bool = option(True, rocketmq="timerWheelEnable", live=True)
    """Take messages with an exact delivery time, not only with a delay level. Off, they are rejected; those that wait
    already are delivered."""
    timer_max_delay: Duration = option(3 * _DAY, rocketmq="timerMaxDelaySec", live=True, ge=1.0, le=366 * _DAY)
    """How far ahead such a time may be. A message that would outlive its log file is stored again on its way."""
    timer_log_file_size: Size = option(100 * _MIB, rocketmq="mappedFileSizeTimerLog", ge=4096, le=(1 << 31) - 1)
    """Size of one file of the timer log, 52 bytes a message; fixed once a store has one. Allocated in full with the
    first such message, in addition to the 37 MiB of the wheel."""
    flush_interval: Duration = option(1.0, rocketmq="timerFlushIntervalMs", live=True, ge=0.01, le=600.0)
    """How often the broker checks whether to save the schedule's progress. After a crash this much of the log is read
    again, to find what was delivered."""


class TransactionsConfig(Section):
    """Half messages: how long their producers have, and how often the broker checks."""

    reject: bool = option(False, rocketmq="rejectTransactionMessage", live=True)
    """Refuse half messages; stored ones are still decided. For brokers that are to be emptied."""
    timeout: Duration = option(6.0, rocketmq="transactionTimeOut", live=True, ge=0.001, le=86400.0)
    """Age at which an undecided half message is first checked, unless it has its own. Longer than local transactions
    usually take, because a check costs a copy of the message."""
    check_interval: Duration = option(30.0, rocketmq="transactionCheckInterval", live=True, ge=0.01, le=86400.0)
    """Time between two rounds of checks. A message whose producer is gone waits that long, and half as long again on
    average."""
    check_max: int = option(15, rocketmq="transactionCheckMax", live=True, ge=1, le=1_000_000)
    """How often one half message is checked before it is put aside in TRANS_CHECK_MAX_TIME_TOPIC. With check_interval
    it is how long a producer may be away."""
    op_interval: Duration = option(3.0, rocketmq="transactionOpBatchInterval", live=True, ge=0.001, le=600.0)
    """Longest time that a decision waits to be written with others. After a crash, rollbacks of this time are checked
    once more, and commits are looked for in the log."""
    op_message_size: Size = option(4096, rocketmq="transactionOpMsgMaxSize", live=True, ge=16, le=1 << 20)
    """Bytes of decisions that are written at once. Some 500 decisions."""


class RepliesConfig(Section):
    """Replies to requests, which the broker passes to the requester."""

    store: bool = option(True, rocketmq="storeReplyMessageEnable", live=True)
    """Keep a copy of every reply in the topic <cluster>_REPLY_TOPIC, also of undeliverable ones. Off, a reply costs no
    disk."""


_TOKEN_LENGTH_MIN: Final = 16


class TlsConfig(Section):
    """Encrypted connections, to the ports of this broker and from it to others; see docs/security.md. Files are read
    again on SIGHUP, by `reput config reload`, and when they change."""

    mode: Literal["off", "permissive", "required"] = option("off")
    """Of port, name_port, fast_port and ha_port: off; permissive: each client chooses, by the first byte that it sends;
    required: connections without TLS are closed. RocketMQ's tls.server.mode disabled, permissive and enforcing. TLS 1.2
    or later is used."""
    http_mode: Literal["auto", "off", "permissive", "required"] = option("auto")
    """The same of http_port; auto: as mode."""
    cert: str = option("")
    """File with the certificate of this broker, and those between it and its authority, in PEM. Clients compare its
    names with the address that they connect to."""
    key: str = option("")
    """File with the key of that certificate, not encrypted; "": it is in cert."""
    ca: str = option("")
    """File with the certificates of the authorities that sign those of clients and of other brokers; "": for other
    brokers those of the system."""
    client_cert: Literal["none", "optional", "required"] = option("none")
    """Whether clients with TLS show a certificate that ca must have signed: none, optional, required. RocketMQ's
    tls.server.need.client.auth. HTTP asks for none, so that probes and browsers need none."""
    connect: bool = option(False)
    """Use TLS towards other brokers and name servers, and show them cert if there is one. In a cluster: permissive
    first, then this on every broker, then required."""
    server_name: str = option("")
    """Name that the certificates of other brokers and name servers have; "": that of the address that is connected
    to."""
    handshake_timeout: Duration = option(10.0, live=True, ge=0.1, le=600.0)
    """Time that a client gets for the TLS handshake. At most 256 clients are in the handshake at a time."""

    @property
    def effective_http_mode(self) -> str:
        """The mode of the HTTP port."""
        return self.mode if self.http_mode == "auto" else self.http_mode

    @property
    def is_on(self) -> bool:
        """Whether some port has TLS."""
        return self.mode != "off" or self.effective_http_mode != "off"


class ConsoleConfig(Section):
    """The web console at /console/ on the HTTP port; see docs/console.md."""

    enabled: bool = option(True)
    """Serve it. Without it the port has metrics, health and status only."""
    token: str = option("", secret=True)
    """What to log in with: 16 or more characters, for instance from `openssl rand -hex 32`. Replaying dead letters and
    cancelling delayed messages need a login. Better than here: in a file that REPUT_CONSOLE__TOKEN_FILE names."""
    read_without_login: bool = option(True)
    """Show everything without login, bodies of messages too, as any client of the broker can read them. Set it to false
    where the HTTP port can be reached by more people than the broker's ports."""
    decoders: BodyForms = option(())
    """How to show bodies that are not JSON, MessagePack or text: TOPIC=FORM, of which the first with a matching topic
    counts; * in a topic stands for any characters. A form is json, msgpack, avro:FILE of a schema,
    protobuf:FILE:MESSAGE with a file of protoc --include_imports --descriptor_set_out, or registry:URL of a schema
    registry, as for `reput consume --decode`. REPUT_REGISTRY_USER and REPUT_REGISTRY_SECRET_FILE have the registry's
    user. Example: ["orders=avro:/etc/reput/order.avsc", "*=registry:http://registry:8081"]."""

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
