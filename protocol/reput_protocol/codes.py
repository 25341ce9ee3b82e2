"""Numbers and words on the wire; names and numbers are RocketMQ's.

`AckLevel`, `Dedup` and the requests from 700001 on are Reput's. Bit sets that hot paths test are plain integers,
because every operation on an `IntFlag` costs a microsecond.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Final, Literal, NoReturn, TypeAlias

PROTOCOL_VERSION: Final = 1
"""`version` of a msgpack header: the native protocol's, independent of RocketMQ's."""

ROCKETMQ_VERSION: Final = 479
"""`version` of JSON and binary headers: RocketMQ's ordinal of V5_3_3."""

OWN_REQUEST_CODE_MIN: Final = 700_000
"""Codes from here to 799999 are Reput's; RocketMQ uses none of them."""


class RequestCode(IntEnum):
    """The request codes."""

    SEND_MESSAGE = 10
    PULL_MESSAGE = 11
    QUERY_MESSAGE = 12
    QUERY_BROKER_OFFSET = 13
    QUERY_CONSUMER_OFFSET = 14
    UPDATE_CONSUMER_OFFSET = 15
    UPDATE_AND_CREATE_TOPIC = 17
    UPDATE_AND_CREATE_TOPIC_LIST = 18
    GET_ALL_TOPIC_CONFIG = 21
    UPDATE_BROKER_CONFIG = 25
    GET_BROKER_CONFIG = 26
    TRIGGER_DELETE_FILES = 27
    GET_BROKER_RUNTIME_INFO = 28
    SEARCH_OFFSET_BY_TIMESTAMP = 29
    GET_MAX_OFFSET = 30
    GET_MIN_OFFSET = 31
    GET_EARLIEST_MSG_STORETIME = 32
    VIEW_MESSAGE_BY_ID = 33
    HEART_BEAT = 34
    UNREGISTER_CLIENT = 35
    CONSUMER_SEND_MSG_BACK = 36
    END_TRANSACTION = 37
    GET_CONSUMER_LIST_BY_GROUP = 38
    CHECK_TRANSACTION_STATE = 39
    NOTIFY_CONSUMER_IDS_CHANGED = 40
    LOCK_BATCH_MQ = 41
    UNLOCK_BATCH_MQ = 42
    GET_ALL_CONSUMER_OFFSET = 43
    GET_ALL_DELAY_OFFSET = 45
    CHECK_CLIENT_CONFIG = 46
    GET_TIMER_CHECK_POINT = 60
    GET_TIMER_METRICS = 61
    PUT_KV_CONFIG = 100
    GET_KV_CONFIG = 101
    DELETE_KV_CONFIG = 102
    REGISTER_BROKER = 103
    UNREGISTER_BROKER = 104
    GET_ROUTEINFO_BY_TOPIC = 105
    GET_BROKER_CLUSTER_INFO = 106
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP = 200
    GET_ALL_SUBSCRIPTIONGROUP_CONFIG = 201
    GET_TOPIC_STATS_INFO = 202
    GET_CONSUMER_CONNECTION_LIST = 203
    GET_PRODUCER_CONNECTION_LIST = 204
    WIPE_WRITE_PERM_OF_BROKER = 205
    GET_ALL_TOPIC_LIST_FROM_NAMESERVER = 206
    DELETE_SUBSCRIPTIONGROUP = 207
    GET_CONSUME_STATS = 208
    DELETE_TOPIC_IN_BROKER = 215
    DELETE_TOPIC_IN_NAMESRV = 216
    REGISTER_TOPIC_IN_NAMESRV = 217
    GET_KVLIST_BY_NAMESPACE = 219
    RESET_CONSUMER_CLIENT_OFFSET = 220
    GET_CONSUMER_STATUS_FROM_CLIENT = 221
    INVOKE_BROKER_TO_RESET_OFFSET = 222
    INVOKE_BROKER_TO_GET_CONSUMER_STATUS = 223
    GET_TOPICS_BY_CLUSTER = 224
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST = 225
    QUERY_TOPIC_CONSUME_BY_WHO = 300
    QUERY_CONSUME_TIME_SPAN = 303
    GET_SYSTEM_TOPIC_LIST_FROM_NS = 304
    GET_SYSTEM_TOPIC_LIST_FROM_BROKER = 305
    CLEAN_EXPIRED_CONSUMEQUEUE = 306
    GET_CONSUMER_RUNNING_INFO = 307
    QUERY_CORRECTION_OFFSET = 308
    CONSUME_MESSAGE_DIRECTLY = 309
    SEND_MESSAGE_V2 = 310
    GET_UNIT_TOPIC_LIST = 311
    GET_HAS_UNIT_SUB_TOPIC_LIST = 312
    GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST = 313
    CLONE_GROUP_OFFSET = 314
    VIEW_BROKER_STATS_DATA = 315
    CLEAN_UNUSED_TOPIC = 316
    GET_BROKER_CONSUME_STATS = 317
    UPDATE_NAMESRV_CONFIG = 318
    GET_NAMESRV_CONFIG = 319
    SEND_BATCH_MESSAGE = 320
    QUERY_CONSUME_QUEUE = 321
    QUERY_DATA_VERSION = 322
    RESUME_CHECK_HALF_MESSAGE = 323
    SEND_REPLY_MESSAGE = 324
    SEND_REPLY_MESSAGE_V2 = 325
    PUSH_REPLY_MESSAGE_TO_CLIENT = 326
    ADD_WRITE_PERM_OF_BROKER = 327
    GET_ALL_PRODUCER_INFO = 328
    DELETE_EXPIRED_COMMITLOG = 329
    QUERY_TOPICS_BY_CONSUMER = 343
    QUERY_SUBSCRIPTION_BY_CONSUMER = 345
    GET_TOPIC_CONFIG = 351
    GET_SUBSCRIPTIONGROUP_CONFIG = 352
    UPDATE_AND_GET_GROUP_FORBIDDEN = 353
    CHECK_ROCKSDB_CQ_WRITE_PROGRESS = 354
    LITE_PULL_MESSAGE = 361
    RECALL_MESSAGE = 370
    QUERY_ASSIGNMENT = 400
    SET_MESSAGE_REQUEST_MODE = 401
    GET_ALL_MESSAGE_REQUEST_MODE = 402
    GET_BROKER_MEMBER_GROUP = 901
    BROKER_HEARTBEAT = 904
    GET_BROKER_HA_STATUS = 907
    RESET_MASTER_FLUSH_OFFSET = 908
    UPDATE_COLD_DATA_FLOW_CTR_CONFIG = 2001
    REMOVE_COLD_DATA_FLOW_CTR_CONFIG = 2002
    GET_COLD_DATA_FLOW_CTR_INFO = 2003
    SET_COMMITLOG_READ_MODE = 2004
    AUTH_CREATE_USER = 3001
    AUTH_UPDATE_USER = 3002
    AUTH_DELETE_USER = 3003
    AUTH_GET_USER = 3004
    AUTH_LIST_USER = 3005
    AUTH_CREATE_ACL = 3006
    AUTH_UPDATE_ACL = 3007
    AUTH_DELETE_ACL = 3008
    AUTH_GET_ACL = 3009
    AUTH_LIST_ACL = 3010
    POP_MESSAGE = 200_050
    ACK_MESSAGE = 200_051
    PEEK_MESSAGE = 200_052
    CHANGE_MESSAGE_INVISIBLETIME = 200_053
    NOTIFICATION = 200_054
    POLLING_INFO = 200_055
    POP_ROLLBACK = 200_056
    BATCH_ACK_MESSAGE = 200_151
    PUT_MESSAGE = 700_001
    LIST_DELAYED_MESSAGES = 700_010
    CANCEL_DELAYED_MESSAGE = 700_011
    LIST_TRANSACTIONS = 700_012
    LIST_GROUPS = 700_020
    DESCRIBE_GROUP = 700_021
    LIST_TOPICS = 700_022
    FETCH_RECORDS = 700_030
    QUERY_QUEUE_BOUNDS = 700_031
    STAGE_RECORDS = 700_040
    END_STAGING = 700_041
    COMMIT_STAGED = 700_042
    ABORT_STAGED = 700_043
    QUERY_STAGED = 700_044
    QUERY_REPLICA_STATE = 700_050
    PROMOTE_BROKER = 700_051
    GET_SINK_BATCHES = 700_060
    AWAIT_TABLE_CHANGES = 700_061
    GET_GROUP_MEMBERS = 700_062
    GET_ALL_SCHEDULES = 700_063
    DESCRIBE_BROKER = 700_070
    LIST_CLIENTS = 700_071
    GET_CONFIG = 700_072
    SET_CONFIG = 700_073
    RELOAD_CONFIG = 700_074
    SET_INTAKE = 700_075
    FLUSH_LOG = 700_076
    DISCONNECT_CLIENT = 700_078
    SIGNATURE_CHALLENGE = 700_080
    PUT_SCHEDULE = 700_090
    CHANGE_SCHEDULE = 700_091
    LIST_SCHEDULES = 700_092
    REPLAY_DEAD_LETTERS = 700_100
    QUERY_REPLAYS = 700_101
    READ_HISTORY = 700_110


class ResponseCode(IntEnum):
    """The outcome of a request; 0 is success."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    TRANSACTION_FAILED = 4
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    VERSION_NOT_SUPPORTED = 15
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    TOPIC_EXIST_ALREADY = 18
    PULL_NOT_FOUND = 19
    PULL_RETRY_IMMEDIATELY = 20
    PULL_OFFSET_MOVED = 21
    QUERY_NOT_FOUND = 22
    SUBSCRIPTION_PARSE_FAILED = 23
    SUBSCRIPTION_NOT_EXIST = 24
    SUBSCRIPTION_NOT_LATEST = 25
    SUBSCRIPTION_GROUP_NOT_EXIST = 26
    FILTER_DATA_NOT_EXIST = 27
    FILTER_DATA_NOT_LATEST = 28
    INVALID_PARAMETER = 29
    TRANSACTION_SHOULD_COMMIT = 200
    TRANSACTION_SHOULD_ROLLBACK = 201
    TRANSACTION_STATE_UNKNOW = 202
    TRANSACTION_STATE_GROUP_WRONG = 203
    NO_BUYER_ID = 204
    NOT_IN_CURRENT_UNIT = 205
    CONSUMER_NOT_ONLINE = 206
    CONSUME_MSG_TIMEOUT = 207
    NO_MESSAGE = 208
    POLLING_FULL = 209
    POLLING_TIMEOUT = 210
    BROKER_NOT_EXIST = 211
    BROKER_DISPATCH_NOT_COMPLETE = 212
    BROADCAST_CONSUMPTION = 213
    FLOW_CONTROL = 215
    NOT_LEADER_FOR_QUEUE = 501
    ILLEGAL_OPERATION = 604
    GO_AWAY = 1500


class LanguageCode(IntEnum):
    """The language of a header's writer. JSON headers have the name, the others the number."""

    JAVA = 0
    CPP = 1
    DOTNET = 2
    PYTHON = 3
    DELPHI = 4
    ERLANG = 5
    RUBY = 6
    OTHER = 7
    HTTP = 8
    GO = 9
    PHP = 10
    OMS = 11
    RUST = 12
    NODE_JS = 13


class AckLevel(StrEnum):
    """What the broker must have done with a message before it acknowledges it.

    `PAGE_CACHE` survives the broker process, `FLUSHED` the machine, `REPLICATED` the loss of one machine.
    """

    PAGE_CACHE = "page_cache"
    FLUSHED = "flushed"
    REPLICATED = "replicated"

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        raise ValueError(f"ack is 'page_cache', 'flushed' or 'replicated', not {value!r:.80}")


Ack: TypeAlias = Literal["page_cache", "flushed", "replicated"] | AckLevel
"""An acknowledgement level as an argument."""


class Dedup(StrEnum):
    """How the broker deduplicates a put, by unique ids.

    `MARK`: sent for the first time, with generated ids, perhaps again later. `CHECK`: it may be stored already, and is
    then answered as the first time.
    """

    MARK = "mark"
    CHECK = "check"


class BoundaryType(StrEnum):
    """Which of several messages of one time a search returns: the first or the last."""

    LOWER = "LOWER"
    UPPER = "UPPER"


Boundary: TypeAlias = Literal["LOWER", "UPPER"] | BoundaryType
"""A `BoundaryType` as an argument."""


class MessageSysFlag:
    """Bits of a record's sysFlag."""

    COMPRESSED: Final = 0x1
    MULTI_TAGS: Final = 0x2
    TRANSACTION_PREPARED: Final = 0x4
    TRANSACTION_COMMIT: Final = 0x8
    TRANSACTION_ROLLBACK: Final = 0xC
    TRANSACTION_MASK: Final = 0xC
    BORN_HOST_V6: Final = 0x10
    STORE_HOST_V6: Final = 0x20
    NEED_UNWRAP: Final = 0x40
    INNER_BATCH: Final = 0x80
    COMPRESSION_MASK: Final = 0x700
    COMPRESSION_LZ4: Final = 0x100
    COMPRESSION_ZSTD: Final = 0x200
    COMPRESSION_ZLIB: Final = 0x300

    PUT_MASK: Final = 0x701
    """The bits that a client may set in a PutMessage block."""


class PullSysFlag:
    """Bits of a pull's sysFlag."""

    COMMIT_OFFSET: Final = 0x1
    SUSPEND: Final = 0x2
    SUBSCRIPTION: Final = 0x4
    CLASS_FILTER: Final = 0x8
    LITE_PULL_MESSAGE: Final = 0x10


class Perm:
    """Bits of a topic's permission (RocketMQ: PermName)."""

    INHERIT: Final = 0x1
    WRITE: Final = 0x2
    READ: Final = 0x4
    PRIORITY: Final = 0x8
    READ_WRITE: Final = 0x6


class ConsumeType(StrEnum):
    """What decides when messages are fetched: the application (`ACTIVELY`), the client, or the broker (`POP`).

    In the order of RocketMQ's ordinals.
    """

    CONSUME_ACTIVELY = "CONSUME_ACTIVELY"
    CONSUME_PASSIVELY = "CONSUME_PASSIVELY"
    CONSUME_POP = "CONSUME_POP"


class MessageModel(StrEnum):
    """Whether each message goes to one member of a group or to all. In the order of RocketMQ's ordinals."""

    BROADCASTING = "BROADCASTING"
    CLUSTERING = "CLUSTERING"


class ConsumeFromWhere(StrEnum):
    """Where a group without an offset begins. RocketMQ deprecates the second to the fourth.

    In the order of RocketMQ's ordinals.
    """

    CONSUME_FROM_LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST = "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST"
    CONSUME_FROM_MIN_OFFSET = "CONSUME_FROM_MIN_OFFSET"
    CONSUME_FROM_MAX_OFFSET = "CONSUME_FROM_MAX_OFFSET"
    CONSUME_FROM_FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    CONSUME_FROM_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class ConsumeResult(StrEnum):
    """The result of consuming a message on request (309)."""

    CR_SUCCESS = "CR_SUCCESS"
    CR_LATER = "CR_LATER"
    CR_ROLLBACK = "CR_ROLLBACK"
    CR_COMMIT = "CR_COMMIT"
    CR_THROW_EXCEPTION = "CR_THROW_EXCEPTION"
    CR_RETURN_NULL = "CR_RETURN_NULL"


class TransactionState(IntEnum):
    """The state of a local transaction (`commitOrRollback` of 37)."""

    UNKNOWN = 0
    COMMIT = MessageSysFlag.TRANSACTION_COMMIT
    ROLLBACK = MessageSysFlag.TRANSACTION_ROLLBACK


class ExpressionType(StrEnum):
    """The language of a subscription's filter."""

    TAG = "TAG"
    SQL92 = "SQL92"
