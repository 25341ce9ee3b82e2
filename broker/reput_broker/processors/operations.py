"""What an operator asks of one broker: its state, clients and configuration; to refuse messages; to sync the log; to
hand over to another member of its group.

The configuration has RocketMQ's names too: of the broker (26, 25), of the name service (319, 318), and its option for
reading ahead (2004) (RocketMQ: AdminBrokerProcessor, DefaultRequestProcessor).

Unlike RocketMQ's, the broker refuses what it does not know or cannot change while it runs, by name, and changes
nothing then. A change lasts until the next reload or restart: the file is the operator's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

import structlog
import trio
from typing_extensions import override

from reput_broker.config.description import config_options
from reput_broker.config.errors import ConfigError
from reput_broker.config.loading import ConfigChange
from reput_broker.config.model import BrokerConfig
from reput_broker.config.properties import Properties, read_properties, written_properties
from reput_broker.ha.election.elector import Elector
from reput_broker.ha.election.engine import EngineUnavailable, LeaseLost
from reput_broker.ha.election.mastership import HandOverRefused
from reput_broker.observe.counters import PROTOCOLS
from reput_broker.observe.health import Health
from reput_broker.remoting.request import Client, Handler, Processor, Refusal, Request, Response, serves, write_in_turns
from reput_broker.tables.config_file import DataVersion
from reput_broker.tenure.core import Core
from reput_protocol.codes import Perm, RequestCode, ResponseCode
from reput_protocol.commands.base import Content, encode_json
from reput_protocol.commands.operation import (
    BrokerDescription,
    ClientDescription,
    ClientDescriptions,
    ConfigChanged,
    ConfigChanges,
    ConfigOptions,
    DisconnectClientHeader,
    FlushedBody,
    Intake,
    ReadAheadHeader,
    SetConfigBody,
    SetIntakeHeader,
)
from reput_protocol.commands.replica import PromoteBrokerHeader, Promotion
from reput_protocol.commands.table import REQUESTS
from reput_protocol.errors import ErrorCode

log = structlog.get_logger(__name__)

_CLIENTS_A_TURN = 64
_NEW_MESSAGES = (
    *(code for code, row in REQUESTS.items() if row.content in (Content.PUT, Content.MESSAGES)),
    RequestCode.REPLAY_DEAD_LETTERS,
)
"""Requests that bring messages of producers. Those that end what has begun (a transaction, a batch, a retry) do not."""
_REFUSALS = {
    Intake.READONLY: Refusal(
        ErrorCode.READ_ONLY, "an operator has set this broker to read-only; `reput broker readonly --off` ends that"
    ),
    Intake.DRAINING: Refusal(
        ErrorCode.DRAINING, "an operator drains this broker; `reput broker drain --off` ends that"
    ),
}

_Refuse: TypeAlias = Callable[[str, Collection[int], Refusal | None], None]
"""Has a tenure refuse requests: `server.handling.RequestHandling.refuse`."""


class Connected(Client, Protocol):
    """A connection, as an administrator sees it. Times are on trio's clock."""

    role: str
    listener: str
    opened_at: float
    silent_since: float


class MessageIntake:
    """Whether the broker takes messages of producers. It outlasts the tenures, and so does a drain.

    Attributes:
        current: as an operator has set it.
    """

    def __init__(self, health: Health) -> None:
        self.current = Intake.OPEN
        self._health = health
        self._refuse: _Refuse = lambda *_: None

    def apply_to(self, refuse: _Refuse) -> None:
        """Refuse in a tenure that begins what was refused in the one before."""
        self._refuse = refuse
        self._refuse_messages()

    def _refuse_messages(self) -> None:
        self._refuse("intake", _NEW_MESSAGES, _REFUSALS.get(self.current))

    def set(self, intake: Intake, peer: str) -> Intake:
        """Accept or reject messages of producers, as an operator at `peer` says; return what was before."""
        was, self.current = self.current, intake
        self._refuse_messages()
        is_draining = intake is Intake.DRAINING
        detail = "" if intake is Intake.OPEN else f"{intake}, set by an operator"
        self._health.set("intake", intake is Intake.OPEN, detail, gates=is_draining)
        if intake is not was:
            log.info("intake_set", intake=str(intake), was=str(was), peer=peer)
        return was

    @property
    def is_writable(self) -> bool:
        """Whether it takes them."""
        return self.current is Intake.OPEN

    def set_writable(self, writable: bool, peer: str) -> None:
        """Take messages, or refuse them as `reput broker readonly` does.

        To take messages ends a drain, too; to refuse them leaves one as it is.
        """
        if writable or self.current is Intake.OPEN:
            self.set(Intake.OPEN if writable else Intake.READONLY, peer)


@dataclass(frozen=True, slots=True)
class Operations:
    """What operators see and change in every tenure.

    Attributes:
        settings: changes the configuration.
        status: returns what the page /status shows.
        properties: the configuration under RocketMQ's names.
    """

    config: BrokerConfig
    health: Health
    settings: LiveOptions
    status: Callable[[], Mapping[str, Any]]
    intake: MessageIntake
    properties: PropertiesProcessor


class OperationsProcessor(Processor):
    """Answers operators in one tenure.

    Args:
        connections: returns the open ones.
    """

    def __init__(self, operations: Operations, core: Core, connections: Callable[[], Iterable[Connected]]) -> None:
        self._broker = operations
        self._core = core
        self._connections = connections

    @override
    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code, with those of the configuration under RocketMQ's names."""
        return {**self._broker.properties.handlers(), **super().handlers()}

    @serves(RequestCode.DESCRIBE_BROKER)
    def describe_broker(self, _request: Request) -> Response:
        """Answer with the state of the broker and its checks."""
        return Response(0, body=BrokerDescription({**self._broker.status(), **self._broker.health.report()}).to_json())

    @serves(RequestCode.LIST_CLIENTS)
    async def list_clients(self, _request: Request) -> Response:
        """Answer with all connections, this one included."""
        now = trio.current_time()
        found = []
        for position, connection in enumerate(self._connections()):
            if position % _CLIENTS_A_TURN == 0:
                await trio.lowlevel.checkpoint()
            if not connection.is_closed:
                found.append(self._described(connection, now))
        return Response(0, body=await write_in_turns(ClientDescriptions(found)))

    def _described(self, connection: Connected, now: float) -> ClientDescription:
        channel = self._core.groups.membership.clients.get(connection)
        return ClientDescription(
            connection.peer,
            connection.role,
            None if channel is None else channel.client_id,
            [] if channel is None else sorted({*channel.consumer_groups, *channel.producer_groups}),
            None if channel is None else channel.language_name,
            None if channel is None else channel.version,
            PROTOCOLS.get(connection.header_type, "unknown"),
            connection.listener,
            int(1000 * (now - connection.opened_at)),
            int(1000 * max(0.0, now - connection.silent_since)),
        )

    @serves(RequestCode.GET_CONFIG)
    async def get_config(self, _request: Request) -> Response:
        """Answer with every option, its value and its source."""
        body = ConfigOptions(config_options(self._broker.config))
        return Response(0, body=await write_in_turns(body))

    @serves(RequestCode.SET_CONFIG)
    def set_config(self, request: Request) -> Response:
        """Set live options until the next reload or restart."""
        values = SetConfigBody.from_json(request.body).values
        return self._changed(lambda: self._broker.settings.set(values))

    @serves(RequestCode.RELOAD_CONFIG)
    def reload_config(self, _request: Request) -> Response:
        """Read the file and the environment again, as on SIGHUP."""
        return self._changed(self._broker.settings.reload)

    def _changed(self, change: Callable[[], list[ConfigChange]]) -> Response:
        try:
            changes = change()
        except ConfigError as error:
            text = "; ".join(map(str, error.problems))
            raise Refusal(ErrorCode.INVALID_ARGUMENT, f"{text}; nothing was changed") from None
        return Response(0, body=ConfigChanges([ConfigChanged(*each) for each in changes]).to_json())

    @serves(RequestCode.SET_INTAKE)
    async def set_intake(self, request: Request) -> Response:
        """Accept or reject messages of producers, and answer when those taken before are on disk."""
        wanted = SetIntakeHeader.from_ext(request.ext).intake
        return await self._flushed(self._broker.intake.set(wanted, request.client.peer))

    @serves(RequestCode.FLUSH_LOG)
    async def flush_log(self, _request: Request) -> Response:
        """Sync the log and answer when that is done."""
        return await self._flushed(self._broker.intake.current)

    @serves(RequestCode.DISCONNECT_CLIENT)
    def disconnect_client(self, request: Request) -> Response:
        """Close a client's connection. The client may connect again."""
        address = DisconnectClientHeader.from_ext(request.ext).address
        found = [one for one in self._connections() if one.peer == address and not one.is_closed]
        if not found:
            raise Refusal(
                ErrorCode.NOT_FOUND, f"no client is connected from {address[:80]!r}; nothing was disconnected"
            )
        for connection in found:
            if connection is request.client:
                raise Refusal(
                    ErrorCode.INVALID_ARGUMENT, "this is the connection of the request itself; close it there"
                )
            connection.close("operator")
        log.info("client_disconnected", address=address, peer=request.client.peer)
        return Response(0)

    async def _flushed(self, was: Intake) -> Response:
        store = self._core.store
        await self._core.puts.progress.flushed.reached(store.wrote_offset)
        return Response(0, body=FlushedBody(store.flushed_offset, was).to_json())


class PromotionProcessor(Processor):
    """Hands over to another member, if an engine elects."""

    def __init__(self, core: Core) -> None:
        self._elector = core.tenures if isinstance(core.tenures, Elector) else None
        self._store = core.store

    @serves(RequestCode.PROMOTE_BROKER)
    async def promote(self, request: Request) -> Response:
        """Make the named member the master; see `Elector.hand_over`."""
        header = PromoteBrokerHeader.from_ext(request.ext)
        if self._elector is None:
            raise Refusal(
                ErrorCode.INVALID_ARGUMENT,
                "no engine elects the master of this broker; set [election], or change ha.role of the brokers",
            )
        try:
            made = await self._elector.hand_over(header.broker_id, self._store.max_physical_offset, force=header.force)
        except HandOverRefused as refused:
            if refused.master:
                raise Refusal(
                    ErrorCode.NOT_MASTER, f"{refused}; ask {refused.master}", ext={"master": refused.master}
                ) from None
            raise Refusal(ErrorCode.INVALID_ARGUMENT, f"{refused}; nothing has changed") from None
        except LeaseLost as error:
            text = (
                f"{error.reason}; this broker is no longer the master, and member {header.broker_id} was not named as "
                "its successor"
            )
            raise Refusal(ErrorCode.NOT_MASTER, f"{text}; ask again at the next master") from None
        except EngineUnavailable as error:
            text = f"{error.reason}; whether the replica takes over is unknown, so check the status of the brokers"
            raise Refusal(ErrorCode.TIMEOUT, text) from None
        promotion = Promotion(broker_id=made.member, end_offset=made.end, kept_offset=made.kept)
        return Response(0, {}, promotion.to_json())


_PERMISSION: Final = "brokerPermission"
_OF_NAME_SERVICES: Final = (RequestCode.GET_NAMESRV_CONFIG, RequestCode.UPDATE_NAMESRV_CONFIG)
_READS_AHEAD: Final = {"0": "true", "1": "false"}
"""By mode of the request: MADV_NORMAL and MADV_RANDOM of the operating system."""


class LiveOptions(Protocol):
    """Changes of the configuration; see `compose.live_config`."""

    def reload(self) -> list[ConfigChange]:
        """Read the sources again. Raises ConfigError."""

    def set(self, values: Mapping[str, str]) -> list[ConfigChange]:
        """Set live options. Raises ConfigError."""


class PropertiesProcessor(Processor):
    """Shows and changes the configuration under RocketMQ's names.

    Args:
        clock_ms: milliseconds since the epoch, for the version of the configuration.
        permission: of a broker, for `brokerPermission`.
    """

    def __init__(
        self,
        properties: Properties,
        settings: LiveOptions,
        clock_ms: Callable[[], int],
        permission: MessageIntake | None = None,
    ) -> None:
        self._properties = properties
        self._settings = settings
        self._clock_ms = clock_ms
        self._permission = permission
        self._version = DataVersion().next(clock_ms())

    @override
    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code; those of a broker only if this is one's."""
        found = super().handlers()
        if self._permission is None:
            return {code: handle for code, handle in found.items() if code in _OF_NAME_SERVICES}
        return found

    @serves(RequestCode.GET_NAMESRV_CONFIG, RequestCode.GET_BROKER_CONFIG)
    def show(self, _request: Request) -> Response:
        """Answer with the configuration, a line `name=value` for each property."""
        found = self._properties.all()
        if self._permission is not None:
            found[_PERMISSION] = str(Perm.READ_WRITE if self._permission.is_writable else Perm.READ)
        version = encode_json(self._version.to_json()).decode()
        return Response(0, {"version": version}, written_properties(found))

    @serves(RequestCode.UPDATE_NAMESRV_CONFIG, RequestCode.UPDATE_BROKER_CONFIG)
    def update(self, request: Request) -> Response:
        """Change live options, all that are named or none."""
        try:
            wanted = read_properties(bytes(request.body))
        except ValueError as error:
            raise Refusal(ErrorCode.INVALID_ARGUMENT, f"{error}; nothing was changed") from None
        writable = self._taken_permission(wanted)
        try:
            self._settings.set(self._properties.options(wanted))
        except ConfigError as error:
            raise self._refusal(error) from None
        if writable is not None and self._permission is not None:
            self._permission.set_writable(writable, request.client.peer)
        self._version = self._version.next(self._clock_ms())
        return Response()

    @serves(RequestCode.SET_COMMITLOG_READ_MODE)
    def set_read_ahead(self, request: Request) -> Response:
        """Set whether the operating system reads ahead in the log."""
        mode = ReadAheadHeader.from_ext(request.ext).mode
        if mode not in _READS_AHEAD:
            raise Refusal(
                ErrorCode.INVALID_ARGUMENT,
                f"{mode!r:.80} is neither 0 (normal) nor 1 (read what is asked for only); nothing was changed",
            )
        self._settings.set({"store.read_ahead": _READS_AHEAD[mode]})
        self._version = self._version.next(self._clock_ms())
        return Response(remark=f"set commitlog readahead mode success, mode: {mode}")  # as RocketMQ's tool prints it

    def _taken_permission(self, wanted: dict[str, str]) -> bool | None:
        """Take `brokerPermission` out; return whether the broker is to take messages, None if it is not named."""
        if self._permission is None or _PERMISSION not in wanted:
            return None
        value = wanted.pop(_PERMISSION)
        if value not in (str(Perm.READ_WRITE), str(Perm.READ)):
            raise Refusal(
                ErrorCode.INVALID_ARGUMENT,
                f"{_PERMISSION}: {value!r:.80} is neither 6 (read and write) nor 4 (read only); nothing was changed",
            )
        return value == str(Perm.READ_WRITE)

    def _refusal(self, error: ConfigError) -> Refusal:
        problems = [
            f"{self._properties.name_of(problem.key)}: {problem.problem}"
            + (f", did you mean {problem.nearest}?" if problem.nearest else "")
            for problem in error.problems
        ]
        return Refusal(
            ErrorCode.INVALID_ARGUMENT,
            f"{'; '.join(problems)}; nothing was changed",
            response_code=ResponseCode.NO_PERMISSION,
        )
