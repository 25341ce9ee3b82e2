"""What an operator asks of one broker: its state, clients and configuration; to take no more messages."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct, field

from reput_protocol.codes import RequestCode
from reput_protocol.commands.base import I64, Body, CommandHeader, LargeBody, Members, RequestType
from reput_protocol.names import ClientId
from reput_protocol.rights import Right


class BrokerDescription(Body):
    """Answer body of DESCRIBE_BROKER: what the page /status shows, and the checks of /readyz?verbose."""

    status: dict[str, Any] = field(default_factory=dict)


class ClientDescription(Members):
    """One connection to a broker. Times are in milliseconds.

    `client_id`, `language` and `version` are known once the client has sent a heartbeat. `role` is `producer`,
    `consumer`, `admin`, `broker` or `unknown`, by the requests so far; `protocol` is the header type of its last frame.
    """

    address: str = ""
    role: str = ""
    client_id: ClientId | None = None
    groups: list[str] = []
    language: str | None = None
    version: I64 | None = None
    protocol: str = ""
    listener: str = ""
    connected_millis: I64 = 0
    idle_millis: I64 = 0


class ClientDescriptions(LargeBody):
    """Answer body of LIST_CLIENTS."""

    clients: list[ClientDescription] = []


class ConfigOption(Members):
    """One option of a broker's configuration.

    `value` has its JSON type, durations in seconds and sizes in bytes; `text` is the value as in a TOML file.
    """

    key: str
    value: Any
    text: str
    source: str
    """What set it: a file, a variable, a flag, `config set`, or `default`."""
    unit: str = ""
    """`s`, `B`, or empty."""
    live: bool = False
    """Whether it can change while the broker runs."""
    default: str = ""
    description: str = ""


class ConfigOptions(LargeBody):
    """Answer body of GET_CONFIG."""

    options: list[ConfigOption] = []


class SetConfigBody(Body):
    """Request body of SET_CONFIG: values by key, as text without quotes: `async`, `500ms`, `4MiB`."""

    values: dict[str, str] = field(default_factory=dict)


class ConfigChanged(Struct, rename="camel"):
    """A change of one option; values as in a TOML file. If it is not live, it waits for a restart."""

    key: str
    before: str
    after: str
    live: bool


class ConfigChanges(Body):
    """Answer body of SET_CONFIG and RELOAD_CONFIG."""

    changes: list[ConfigChanged] = field(default_factory=list)


class Intake(StrEnum):
    """Whether a broker takes messages of producers. Pulls and offset commits continue in each state.

    `OPEN`: it does. `READONLY`: it refuses them and stays ready. `DRAINING`: it refuses them and is not ready, so that
    load balancers send no more clients.
    """

    OPEN = "open"
    READONLY = "readonly"
    DRAINING = "draining"


INTAKE_WORDS: Final[Mapping[Intake, str]] = {
    Intake.OPEN: "takes messages",
    Intake.READONLY: "is read-only",
    Intake.DRAINING: "is drained: it takes no messages and is not ready",
}
"""What a broker in each state does."""

IntakeName: TypeAlias = Literal["open", "readonly", "draining"]
"""An `Intake` as an argument."""


class SetIntakeHeader(CommandHeader):
    """Header of SET_INTAKE. The answer comes when all messages taken before are on disk."""

    intake: Intake


class DisconnectClientHeader(CommandHeader):
    """Header of DISCONNECT_CLIENT: close the connection from this address, `ip:port` as LIST_CLIENTS has it."""

    address: str


class ReadAheadHeader(CommandHeader):
    """Header of SET_COMMITLOG_READ_MODE: 0 or 1, MADV_NORMAL or MADV_RANDOM of the operating system."""

    mode: str = field(name="READ_AHEAD_MODE")


class FlushedBody(Body):
    """Answer body of SET_INTAKE and FLUSH_LOG: the log is on disk up to this offset."""

    flushed_offset: I64
    was: Intake = Intake.OPEN
    """The state before."""


# -- the requests ------------------------------------------------------------------------------------------------------

REQUESTS: Final = (
    RequestType(RequestCode.DESCRIBE_BROKER, cluster=Right.DESCRIBE),
    RequestType(RequestCode.LIST_CLIENTS, cluster=Right.DESCRIBE),
    RequestType(RequestCode.GET_CONFIG, cluster=Right.DESCRIBE),
    RequestType(RequestCode.SET_CONFIG, body=SetConfigBody, cluster=Right.ADMIN),
    RequestType(RequestCode.RELOAD_CONFIG, cluster=Right.ADMIN),
    RequestType(RequestCode.SET_INTAKE, SetIntakeHeader, cluster=Right.ADMIN),
    RequestType(RequestCode.FLUSH_LOG, cluster=Right.ADMIN),
    RequestType(RequestCode.DISCONNECT_CLIENT, DisconnectClientHeader, cluster=Right.ADMIN),
    RequestType(RequestCode.GET_BROKER_CONFIG, cluster=Right.DESCRIBE),
    RequestType(RequestCode.UPDATE_BROKER_CONFIG, cluster=Right.ADMIN),
    RequestType(RequestCode.GET_NAMESRV_CONFIG, cluster=Right.DESCRIBE),
    RequestType(RequestCode.UPDATE_NAMESRV_CONFIG, cluster=Right.ADMIN),
    RequestType(RequestCode.GET_BROKER_RUNTIME_INFO, cluster=Right.DESCRIBE, proves_master=True),
    RequestType(RequestCode.TRIGGER_DELETE_FILES, cluster=Right.ADMIN),
    RequestType(RequestCode.DELETE_EXPIRED_COMMITLOG, cluster=Right.ADMIN),
    RequestType(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, cluster=Right.ADMIN),
    RequestType(RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS, cluster=Right.ADMIN),
    RequestType(RequestCode.SET_COMMITLOG_READ_MODE, ReadAheadHeader, cluster=Right.ADMIN),
    RequestType(RequestCode.GET_COLD_DATA_FLOW_CTR_INFO, cluster=Right.DESCRIBE),
    RequestType(RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, cluster=Right.ADMIN),
    RequestType(RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG, cluster=Right.ADMIN),
)  # fmt: skip
